"""What an answer that outlives its call names of a device."""

from __future__ import annotations

import pytest

import kdp
from kdp.supervision.given import Given


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


def test_an_older_record_says_which_nodes_were_the_containers_alone() -> None:
    saved = {"nodes": ["/dev/a", "/dev/shared"], "identity": "minor number 0", "shared": ["/dev/shared"]}
    given = Given.of_json(saved)
    assert given.reach == {"/dev/a": ()}
    assert not given.is_other_hardware(device("/dev/a", identity="GPU-1, minor number 0"))
    assert given.is_other_hardware(device("/dev/a", identity="GPU-1, minor number 1"))
