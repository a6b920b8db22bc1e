from __future__ import annotations

from typing import Any

import pytest
from tests.conditions import conditions
from typing_extensions import override

import kdp
from kdp.supervision.backend_validation import check_attributes, checked_devices
from kdp.supervision.supervisor import Supervisor


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("resource", 7, "7 must be a resource's name or None; for example 'example.com/widget'"),
        ("resources", None, "None must be a sequence of resources' names; for example ['example.com/widget']"),
        (
            "resources",
            "example.com/a",
            "'example.com/a' must be a sequence of resources' names; for example ['example.com/widget']",
        ),
        ("resources", [None], "None must be a resource's name; for example 'example.com/widget'"),
        ("poll_interval", 0, "0 must be a number of seconds above 0, or None for never; for example 5.0"),
        ("poll_interval", float("nan"), "nan must be a number of seconds above 0, or None for never; for example 5.0"),
        ("stale_after", None, "None must be a number of seconds; for example 30.0"),
        ("joined_env", {"A": 1}, "{'A': 1} must map variables to separators; for example {'WIDGETS': ','}"),
        ("policy", 3, "3 must be the name of a policy or None; for example 'packed'"),
        ("unused_hooks", [["released"]], "['released'] must be a hook's name; for example 'released'"),
    ],
)
def test_an_attribute_of_another_kind_is_one_sentence(name: str, value: Any, sentence: str) -> None:
    backend = Widgets()
    setattr(backend, name, value)
    with pytest.raises(kdp.ConfigurationError) as caught:
        Supervisor(backend, host=None)
    assert str(caught.value) == f"Widgets.{name}: {sentence}"


@pytest.mark.parametrize("name", ["resources", "unused_hooks"])
def test_a_property_that_raises_is_one_sentence(name: str) -> None:
    def fail(self: object) -> None:
        raise OSError("no driver")

    backend = type("Widgets", (Widgets,), {name: property(fail)})()
    with pytest.raises(kdp.ConfigurationError) as caught:
        check_attributes(backend)
    assert str(caught.value) == f"Widgets.{name} raised OSError: no driver; it is read before the backend is open"


def test_a_hook_that_there_is_not_is_one_sentence() -> None:
    backend = Widgets()
    backend.unused_hooks = ("shut",)
    with pytest.raises(
        kdp.ConfigurationError, match="unused_hooks of Widgets: 'shut' is no optional hook; there are all"
    ):
        check_attributes(backend)


def test_measurements_that_nobody_gives_were_taken_in_silence() -> None:
    backend = Widgets()
    backend.measurements = (kdp.Measurement("power", unit="watts", help="Of the card."),)
    with pytest.raises(kdp.ConfigurationError, match="measurements are declared, and there is no hook 'measure'"):
        check_attributes(backend)


def test_what_is_right_passes() -> None:
    backend = Widgets()
    backend.resources = ("example.com/a", "example.com/b")
    backend.poll_interval = None
    backend.stale_after = float("inf")
    backend.joined_env = {"WIDGETS": ","}
    backend.policy = "packed"
    backend.unused_hooks = {"released"}
    check_attributes(backend)


def test_the_conditions_of_what_a_backend_returns_are_dropped() -> None:
    """A backend may return devices that kdp has handed to a hook of its."""
    returned = [
        kdp.Device(id="w0", health=kdp.Health("fan failed", conditions("scrub"))),
        kdp.Device(id="w1", health=kdp.Health(None, conditions("scrub"))),
    ]
    devices = checked_devices(returned, Widgets())
    assert [(device.health.reason, device.health.conditions) for device in devices] == [("fan failed", ()), (None, ())]
