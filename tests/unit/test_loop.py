from __future__ import annotations

import pytest
from tests.loop import Loop


def test_what_grpc_has_for_a_test_that_has_ended_is_no_error_of_the_next_one() -> None:
    def late() -> None:
        raise AssertionError

    loop = Loop()
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon_threadsafe(late)
    late.__module__ = "grpc._cython.cygrpc"
    loop.call_soon_threadsafe(late)
