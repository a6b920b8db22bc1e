from __future__ import annotations

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.drift import DriftDetector

ALL = frozenset({"w0", "w1", "w2"})
NONE: frozenset[str] = frozenset()
PACE = Pace()


def looked(
    detector: DriftDetector, sent: frozenset[str], accepted: frozenset[str], now: float, *, until: float
) -> float | None:
    """Look as often as it asks for; return when it found a lasting difference."""
    while now < until:
        if detector.compare(sent, accepted, now) is not None:
            return now
        assert detector.next_look is not None
        assert detector.next_look > now
        now = detector.next_look
    return None


def disagrees(detector: DriftDetector) -> bool | None:
    return None if detector.view is None else detector.view.disagrees


def test_the_first_look_is_soon_after_the_connection() -> None:
    detector = DriftDetector(PACE)
    assert detector.next_look is None
    detector.connected(100.0)
    assert detector.next_look == 100.0 + PACE.after_connect
    assert detector.compare(ALL, ALL, 105.0) is None
    assert detector.next_look == 105.0 + PACE.period
    detector.lost()
    assert detector.next_look is None


def test_a_difference_must_last() -> None:
    detector = DriftDetector(PACE)
    detector.connected(0.0)
    assert detector.compare(ALL, NONE, 5.0) is None
    assert detector.next_look == 5.0 + PACE.again
    assert detector.compare(ALL, NONE, 5.0 + PACE.lasting - 0.1) is None
    difference = detector.compare(ALL, NONE, 5.0 + PACE.lasting)
    assert difference == (
        "the kubelet treats 3 devices (w0, ...) as unhealthy or absent although kdp reported otherwise, for 30 s"
    )


def test_only_what_was_wrong_each_time_counts() -> None:
    detector = DriftDetector(PACE)
    detector.connected(0.0)
    one, other = frozenset({"w0"}), frozenset({"w1"})
    for now in range(0, 200, 10):  # flaps: each look finds another one wrong
        assert detector.compare(ALL, ALL - (one if now % 20 else other), float(now)) is None
    for now in range(200, 400, 10):  # the other direction is another fault
        assert detector.compare(ALL if now % 20 else ALL - one, ALL - one if now % 20 else ALL, float(now)) is None


def test_a_phantom_is_a_difference() -> None:
    detector = DriftDetector(PACE)
    detector.connected(0.0)
    assert looked(detector, NONE, frozenset({"w9"}), 5.0, until=100.0) == 35.0


def test_what_a_new_generation_does_not_cure_is_answered_more_and_more_seldom() -> None:
    detector = DriftDetector(PACE)
    now, pauses = 0.0, []
    for _ in range(8):
        detector.connected(now)
        found = looked(detector, ALL, NONE, now + PACE.after_connect, until=now + 5000.0)
        assert found is not None
        pauses.append(found - now)
        now = found
    assert pauses[:4] == [35.0, 65.0, 125.0, 245.0]
    assert pauses[-1] == pauses[-2] <= 1000.0
    detector.connected(now)
    detector.compare(ALL, ALL, now + 5.0)
    assert looked(detector, ALL, NONE, now + 65.0, until=now + 500.0) == now + 95.0


def test_a_kubelet_that_cannot_be_asked_is_asked_again() -> None:
    detector = DriftDetector(PACE)
    detector.postpone(0.0)
    assert detector.next_look is None
    detector.connected(0.0)
    detector.postpone(5.0)
    assert detector.next_look == 5.0 + PACE.period
    detector.postpone(6.0, is_outdated=True)
    assert detector.next_look == 6.0 + PACE.again


def test_the_verdict_of_the_last_comparison_outlives_the_generation_that_cures_it() -> None:
    """Else a kubelet that is registered with again and again would look as if it agreed in between."""
    detector = DriftDetector(PACE)
    assert disagrees(detector) is None
    detector.connected(0.0)
    while detector.compare(ALL, NONE, detector.next_look or 0.0) is None:
        assert disagrees(detector)
    detector.lost()
    detector.connected(100.0)
    assert disagrees(detector)
    detector.compare(ALL, ALL, 105.0)
    assert disagrees(detector) is False
    detector.compare(NONE, ALL, 165.0)
    assert disagrees(detector)


def test_what_differs_is_told_with_when_it_began() -> None:
    detector = DriftDetector(Pace())
    detector.connected(0.0)
    for now in (5.0, 15.0):
        detector.compare(frozenset({"a"}), frozenset({"b"}), now)
    assert detector.view is not None
    assert (detector.view.missing, detector.view.phantom) == (frozenset({"a"}), frozenset({"b"}))
    assert (detector.view.since, detector.view.compared_at) == (5.0, 15.0)
    detector.compare(frozenset({"a"}), frozenset({"a"}), 25.0)
    assert (detector.view.missing, detector.view.since) == (frozenset(), None)
