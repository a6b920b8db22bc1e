"""What a board measures of itself, as Prometheus has it: temperature and power, where sysfs has a sensor of it.

A board has one sensor, so all of its ports show the same value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

import kdp
import kdp.hardware

from .temperature import SENSIBLE, SENSORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MEASUREMENTS: Final = (
    kdp.Measurement("fpga_temperature", unit="celsius", help="Temperature of the board that the device is on."),
    kdp.Measurement("fpga_power", unit="watts", help="Power of the board that the device is on."),
)


@final
@attrs.frozen
class _Meter:
    """An attribute with a power, and its unit in watts."""

    now: str
    unit: float


_METERS: Final = (
    _Meter("hwmon/hwmon*/power1_input", 1e-6),  # DFL
    _Meter("power_mgmt/consumed", 1.0),  # OPAE
    _Meter("xmc.*/xmc_power", 1e-6),  # XRT
)


def measured(boards: Mapping[str, Iterable[kdp.hardware.Directory]]) -> dict[str, dict[str, float]]:
    """Return what devices measure. Blocks for sysfs.

    Args:
        boards: For each device, what has its board's sensors. A card with two functions has two; it is as hot as the
            hotter one, and its power is not known, because nobody says whether each sensor has its half.
    """
    found: dict[str, dict[str, float]] = {}
    known: dict[tuple[str, ...], dict[str, float]] = {}
    for device_id, places in boards.items():
        places = tuple(places)
        key = tuple(place.path for place in places)
        if key not in known:
            known[key] = _of(places)
        found[device_id] = known[key]
    return found


def _of(places: tuple[kdp.hardware.Directory, ...]) -> dict[str, float]:
    values: dict[str, float] = {}
    heats = [_heat(place) for place in places]
    if told := [heat for heat in heats if heat is not None]:
        values["fpga_temperature"] = max(told)
    if len(places) == 1 and (power := _power(places[0])) is not None:
        values["fpga_power"] = power
    return values


def _heat(board: kdp.hardware.Directory) -> float | None:
    for sensor in SENSORS:
        if (value := _first(board, sensor.now)) is not None:
            return value * sensor.unit if abs(value) < SENSIBLE else None
    return None


def _power(board: kdp.hardware.Directory) -> float | None:
    for meter in _METERS:
        if (value := _first(board, meter.now)) is not None and value >= 0:
            return value * meter.unit
    return None


def _first(board: kdp.hardware.Directory, path: str) -> int | None:
    above, _, name = path.rpartition("/")
    readings = (place.integer(name).value for place in board.children(above))
    return next((value for value in readings if value is not None), None)
