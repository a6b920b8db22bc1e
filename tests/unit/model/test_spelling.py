"""Names that are almost ours are said, and names of a vendor's own are not."""

from __future__ import annotations

import re

import pytest
from typing_extensions import override

import kdp
from kdp.daemon.sources import VARIABLES
from kdp.model.spelling import hint, slips_in, slips_in_variables


class Careless(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_intervall = 1.0
    polcy = "packed"

    def __init__(self) -> None:
        self.pollInterval = 3
        self.stale_afer = 3
        self.cards = ()

    @override
    def discover(self) -> list[kdp.Device]:
        return []

    def alocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        raise NotImplementedError

    @property
    def discovr(self) -> None:
        raise AssertionError("its value is nobody's business")


class Careful(kdp.DeviceBackend):
    devices: tuple[str, ...] = ()
    host = driver = handle = library = serial = opened = name = names = options = node = match = None

    @override
    def discover(self) -> list[kdp.Device]:
        return []

    def _alocate(self) -> None: ...


def test_misspelt_hooks_and_attributes_are_named_with_what_was_meant() -> None:
    said = [re.fullmatch(r"Careless\.(\w+): .* did you mean '(\w+)'\?.*", line) for line in slips_in(Careless())]
    assert {match[1]: match[2] for match in said if match} == {
        "alocate": "allocate",
        "discovr": "discover",
        "polcy": "policy",
        "pollInterval": "poll_interval",
        "poll_intervall": "poll_interval",
        "stale_afer": "stale_after",
    }
    assert slips_in(Careful()) == []


@pytest.mark.parametrize("name", ["KDP_POLL_INTERVALL", "KPD_POLL_INTERVAL"])
def test_misspelt_variables_are_named(name: str) -> None:
    assert slips_in_variables([name, "PATH"], VARIABLES) == [
        f"{name}: kdp ignores this unknown variable; did you mean KDP_POLL_INTERVAL?"
    ]


def test_variables_of_others_are_not_named() -> None:
    others = ["KDP_SERVICE_HOST", "KDP_SERVICE_PORT", "KDP_PORT", "KDP_PORT_80_TCP_ADDR", "KDP_SET_SOCKET", "HTTP"]
    assert slips_in_variables([*others, *VARIABLES], VARIABLES) == []


def test_a_beginning_is_a_hint() -> None:
    assert hint("nvidia", ["fpga", "nvidia-gpu"]) == "did you mean 'nvidia-gpu'?"
    assert hint("device", ["run", "devices"]) == "did you mean 'devices'?"
    assert hint("frobnicate", ["run", "devices"]) == ""


def test_milliseconds_for_seconds_made_a_class_look_twice_a_day() -> None:
    class Slow(kdp.DeviceBackend):
        poll_interval = 50_000
        stale_after = 30.0

        @override
        def discover(self) -> list[kdp.Device]:
            return []

    assert slips_in(Slow()) == ["Slow.poll_interval is 50000, which is more than an hour; it is in seconds"]
