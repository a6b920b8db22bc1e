"""What is taken out of groups of exceptions."""

from __future__ import annotations

import pytest

from kdp_testkit.lifetime import leaves, ungrouped


def test_leaves_come_in_their_order_however_deep_they_are() -> None:
    first, second, last = ValueError("1"), KeyboardInterrupt(), OSError("3")
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [first, BaseExceptionGroup("", [second])]), last])
    assert leaves(group) == [first, second, last]


def test_only_a_group_of_one_is_taken_apart() -> None:
    with pytest.raises(ValueError, match="alone"), ungrouped():
        raise ExceptionGroup("", [ExceptionGroup("", [ValueError("alone")])])
    with pytest.raises(ExceptionGroup), ungrouped():
        raise ExceptionGroup("", [ValueError("1"), ExceptionGroup("", [ValueError("2")])])
