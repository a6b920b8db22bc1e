from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from typing_extensions import override

import kdp
from kdp.supervision.backend_validation import check_attributes
from kdp.supervision.measuring import MOST_DEVICES, Measured, Measuring

USE = kdp.Measurement("utilization", unit="ratio", help="Share of time in use.")
HEAT = kdp.Measurement("temperature", unit="celsius", help="Of the chip.")
RESOURCE = "example.com/gpu"
KNOWN = {"gpu-0": RESOURCE, "gpu-1": RESOURCE}


def measuring() -> Measuring:
    return Measuring("Gpus", (USE, HEAT))


def test_what_is_declared_and_known_is_taken() -> None:
    found = measuring().take({"gpu-0": {"utilization": 1, "temperature": 40.5}, "gpu-1": {}}, KNOWN)
    assert found == {
        "gpu-0": Measured(RESOURCE, {"utilization": 1.0, "temperature": 40.5}),
        "gpu-1": Measured(RESOURCE, {}),
    }


@pytest.mark.parametrize("value", [math.nan, True, 10**400])
def test_a_value_that_is_no_finite_number_is_told_and_the_others_go_on(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    subject = measuring()
    for _ in range(3):
        found = subject.take({"gpu-0": {"utilization": value, "temperature": 40}}, KNOWN)
        assert found["gpu-0"].values == {"temperature": 40.0}
    assert len([r for r in caplog.records if "must be a finite number" in r.getMessage()]) == 1


def test_a_counter_is_not_negative_and_a_gauge_may_be(caplog: pytest.LogCaptureFixture) -> None:
    reads = kdp.Measurement("reads", help="Reads.", kind="counter")
    subject = Measuring("Gpus", (HEAT, reads))
    for _ in range(3):
        found = subject.take({"gpu-0": {"temperature": -40, "reads": -1}, "gpu-1": {"reads": 0}}, KNOWN)
        assert [each.values for each in found.values()] == [{"temperature": -40.0}, {"reads": 0.0}]
    assert len([r for r in caplog.records if "gave -1 for reads of gpu-0: a counter is not neg" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("unit", "value", "rule"),
    [
        ("ratio", 85, "ratio must be from 0 to 1.5; divide percent by 100"),
        ("celsius", 61000, "celsius must be from -273.15 to 1000; divide millidegrees by 1000"),
        ("watts", 70_000_000, "watts must be from -50000 to 50000; divide microwatts by 1000000"),
        ("volts", 12_000, "volts must be from -1000 to 1000; divide millivolts by 1000"),
        ("amperes", 8_000, "amperes must be from -5000 to 5000; divide milliamperes by 1000"),
    ],
)
def test_a_value_in_another_unit_was_published(
    unit: str, value: int, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = Measuring("Gpus", (kdp.Measurement("reading", unit=unit, help="A reading."), HEAT))
    for _ in range(3):
        found = subject.take({"gpu-0": {"reading": value, "temperature": 61}}, KNOWN)
        assert found["gpu-0"].values == {"temperature": 61.0}
    assert [each.getMessage() for each in caplog.records] == [
        f"measure() of Gpus gave {value:g} for reading of gpu-0: {rule}"
    ]


def test_unknown_devices_and_measurements_are_told_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    subject = measuring()
    for i in range(200):
        measured = {"gpu-0": {"utilization": 0.5, "fan": 3}, f"gpu-{i + 7}": {"utilization": 1}, 5: {}, "gpu-1": 3}
        found = subject.take(measured, KNOWN)
        assert found == {"gpu-0": Measured(RESOURCE, {"utilization": 0.5}), "gpu-1": Measured(RESOURCE, {})}
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(" of Gpus ")[2].partition(",")[0] for text in said] == [
        "measured 'fan'",
        "measured 'gpu-7'",
        "gave 3 for gpu-1: must map measurements to values",
    ]


def test_names_without_end_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    subject = measuring()
    subject.take({"gpu-0": {f"name_{i}": 1 for i in range(1000)}}, KNOWN)
    assert len(caplog.records) == 100


def test_no_more_devices_are_measured_than_are_exported() -> None:
    known = {str(i): RESOURCE for i in range(MOST_DEVICES + 5)}
    assert len(measuring().take({name: {} for name in known}, known)) == MOST_DEVICES


@pytest.mark.parametrize("found", [None, "text"])
def test_what_is_no_mapping_fails_the_hook(found: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="must map device ids"):
        measuring().take(found, KNOWN)


class Gpus(kdp.DeviceBackend):
    @override
    def discover(self) -> list[kdp.Device]:
        return []


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("measurements", (USE, USE), "is there twice"),
        ("measurements", ("utilization",), "must be a kdp.Measurement"),
        ("measurements", [kdp.Measurement(f"m{i}", help="M.") for i in range(33)], "at most 32"),
        ("measure_interval", math.inf, "above 0"),
    ],
)
def test_a_wrong_declaration_ends_the_start(attribute: str, value: object, words: str) -> None:
    backend = Gpus()
    setattr(backend, attribute, value)
    with pytest.raises(kdp.ConfigurationError, match=f"Gpus.{attribute}: .*{words}"):
        check_attributes(backend)
