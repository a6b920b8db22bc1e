"""The versions and their differences."""

from __future__ import annotations

import pytest

from kdp_testkit.profiles import profile_named


def test_an_unknown_profile_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="there is no kubelet profile 'k999'; there are k132, k134, k136, k137"):
        profile_named("k999")
