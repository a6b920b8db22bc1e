"""The limit of calls a second."""

from __future__ import annotations

from kdp_testkit.devicemanager.nodeapi import RateLimit

from ..fakes import Clock


def test_ten_at_once_and_then_a_hundred_a_second() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert [limit.take() for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now += 0.035
    assert [limit.take() for _ in range(5)] == [True] * 3 + [False] * 2
    clock.now += 3600
    assert sum(limit.take() for _ in range(50)) == 10
