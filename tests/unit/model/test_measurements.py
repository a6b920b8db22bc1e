from __future__ import annotations

from typing import Any

import pytest

import kdp


@pytest.mark.parametrize(
    ("name", "unit", "series"),
    [("gpu_memory_bytes", "bytes", "kdp_gpu_memory_bytes"), ("open_seats", "", "kdp_open_seats")],
)
def test_a_measurement_is_a_gauge_with_its_unit(name: str, unit: str, series: str) -> None:
    assert kdp.Measurement(name, unit=unit, help="Something.").series == series


@pytest.mark.parametrize(
    ("name", "unit", "series"),
    [("port_received", "bytes", "kdp_port_received_bytes_total"), ("port_errors", "", "kdp_port_errors_total")],
)
def test_a_counter_ends_with_total(name: str, unit: str, series: str) -> None:
    assert kdp.Measurement(name, unit=unit, help="Something.", kind="counter").series == series


def test_a_name_that_says_total_already_is_told_the_kind() -> None:
    with pytest.raises(kdp.InvalidValueError, match="kind='counter' adds it"):
        kdp.Measurement("reads_total", help="Something.")


@pytest.mark.parametrize("kind", ["histogram", None])
def test_a_wrong_kind_is_refused_with_a_right_one(kind: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="must be 'gauge' or 'counter'; for example 'gauge'"):
        kdp.Measurement("reads", help="Something.", kind=kind)


@pytest.mark.parametrize("name", ["Utilization", "x" * 64, "info", None])
def test_a_wrong_name_is_refused_with_a_right_one(name: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="for example 'gpu_utilization'"):
        kdp.Measurement(name, unit="ratio", help="Something.")


@pytest.mark.parametrize("unit", ["Bytes", None, "total"])
def test_a_wrong_unit_is_refused_with_a_right_one(unit: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="for example 'bytes'"):
        kdp.Measurement("memory", unit=unit, help="Something.")


@pytest.mark.parametrize(("unit", "base"), [("percent", "ratio"), ("milliwatts", "watts")])
def test_a_unit_that_is_no_base_unit_is_refused_with_that(unit: str, base: str) -> None:
    with pytest.raises(kdp.InvalidValueError, match=f"unit '{unit}'.*for example {base}"):
        kdp.Measurement("memory", unit=unit, help="Something.")


@pytest.mark.parametrize("text", [" ", None])
def test_a_measurement_says_what_it_is(text: Any) -> None:
    with pytest.raises(kdp.InvalidValueError, match="must say what is measured"):
        kdp.Measurement("memory", unit="bytes", help=text)
