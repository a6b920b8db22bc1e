"""What an answer that outlives its call names of a device."""

from __future__ import annotations

import attrs
import pytest

import kdp
from kdp.supervision.given import Given, taken


def device(*nodes: str, identity: str = "") -> kdp.Device:
    return kdp.Device(id="w0", edits=kdp.ContainerEdits.of_node(*nodes), identity=identity)


@pytest.mark.parametrize(
    ("then", "now", "fault"),
    [
        (device("/dev/a", "/dev/shared"), device("/dev/a", "/dev/shared"), None),
        (device("/dev/a"), device("/dev/a", "/dev/more"), None),
        (device("/dev/a"), device("/dev/b"), "is /dev/b now; the pod was given /dev/a; delete the pod"),
        (
            device("/dev/a", "/dev/shared"),
            device("/dev/b", "/dev/shared"),
            "is /dev/b now; the pod was given /dev/a; delete the pod",
        ),
        (device("/dev/a"), device(), "has another node now; the pod was given /dev/a; delete the pod"),
        (
            device("/dev/a", identity="serial 1"),
            device("/dev/a", identity="serial 2"),
            "is other hardware now (serial 2); the pod was given serial 1; delete the pod",
        ),
        (device("/dev/a", identity="serial 1"), device("/dev/a"), None),
        (device("/dev/a"), device("/dev/a", identity="serial 1"), None),
    ],
)
def test_a_device_is_compared_with_what_a_pod_was_given(then: kdp.Device, now: kdp.Device, fault: str | None) -> None:
    given = Given.of(then, {"/dev/a", "/dev/shared"})
    assert given.fault(now) == fault
    assert Given.of_json(given.as_json()) == given


def test_what_the_answer_does_not_name_is_not_compared() -> None:
    """It is in a CDI file, which is written again."""
    assert Given.of(device("/dev/a"), ()).fault(device("/dev/b")) is None


@pytest.mark.parametrize(
    ("given", "now", "is_taken"),
    [
        (Given(nodes=("/dev/a",)), device("/dev/a"), True),
        (Given(nodes=("/dev/a",)), device("/dev/b"), False),
        (Given(nodes=("/dev/a",), shared=("/dev/a",)), device("/dev/a"), False),
        (Given(nodes=("/dev/a",), identity="1"), device("/dev/a", identity="1"), False),
        (Given(nodes=("/dev/a",), identity="1"), device("/dev/a", identity="2"), True),
    ],
)
def test_a_node_in_a_living_answer_is_another_device_now(given: Given, now: kdp.Device, is_taken: bool) -> None:
    assert bool(taken([now], [("gone", given)], 0.0)) is is_taken
    assert Given.of_json(given.as_json()) == given


def test_a_node_that_its_device_still_has_is_shared_today() -> None:
    assert not taken(
        [device("/dev/a"), attrs.evolve(device("/dev/a"), id="w1")], [("w1", Given(nodes=("/dev/a",)))], 0.0
    )


def test_a_node_that_two_had_for_a_moment_was_offered_for_ever() -> None:
    """The pod was admitted while the numbers were swapped: for that moment both devices had the node."""
    held, other = device("/dev/b"), attrs.evolve(device("/dev/a"), id="w1")
    given = Given.of(device("/dev/a"), {"/dev/a"}, shared={"/dev/a"})
    assert given.fault(held) == "is /dev/b now; the pod was given /dev/a; delete the pod"
    [(name, why)] = taken([held, other], [("w0", given)], 0.0).items()
    assert (name, why.kind) == ("w1", "held")
    assert why.reason == "is /dev/a, which a pod was given as w0; delete the pod that holds w0"


def test_the_seats_of_a_node_are_offered_after_one_is_gone() -> None:
    given = Given.of(device("/dev/a"), {"/dev/a"}, shared={"/dev/a"})
    assert not taken([attrs.evolve(device("/dev/a"), id="w1")], [("w0", given)], 0.0)


def test_a_device_that_could_not_be_described_after_a_restart_had_another_node() -> None:
    unknown = kdp.Device(id="w0", health=kdp.Health.unhealthy("no answer"), is_described=False)
    given = Given.of(device("/dev/a"), {"/dev/a"})
    assert given.fault(unknown) is None
    assert taken([unknown, attrs.evolve(device("/dev/a"), id="w1")], [("w0", given)], 0.0).keys() == {"w1"}
    assert not taken([unknown, attrs.evolve(device("/dev/b"), id="w1")], [("w0", given)], 0.0)
