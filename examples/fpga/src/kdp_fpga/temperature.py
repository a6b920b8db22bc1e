"""`Thermometer`: which boards are too hot, with a distance between too hot and cool again.

The limit is the option's or the board's own critical temperature. Without a distance a board at the limit would come
and go with each reading. A sensor that says nothing changes nothing: it is no fault of the accelerator, and a hot board
stays hot.
"""

from __future__ import annotations

from typing import final

import attrs

import kdp
import kdp.hardware

SENSIBLE = 1_000_000
"""From here on it is no temperature, in whatever unit, and perhaps a number too large to reckon with."""

_MARGIN = 5.0
"""Degrees by which a board must be cooler than the limit, where no option says otherwise."""


@final
@attrs.frozen
class Sensor:
    """An attribute with a temperature, one with its limit, one that says 1 above it, and their unit in degrees."""

    now: str
    limit: str | None
    alarm: str | None
    unit: float


SENSORS = (
    Sensor("hwmon/hwmon*/temp1_input", "temp1_crit", "temp1_crit_alarm", 1e-3),  # DFL
    Sensor("thermal_mgmt/temperature", "threshold2", None, 1.0),  # OPAE
    Sensor("xmc.*/xmc_fpga_temp", None, None, 1.0),  # XRT
)


@final
class Thermometer:
    """Knows which boards are hot.

    Args:
        limit: Degrees Celsius from which on a board is too hot; None: its own critical temperature.
        clear: Degrees Celsius from which on it is cool again; None: five below the limit.

    Raises:
        kdp.ConfigurationError: They contradict each other.
    """

    def __init__(self, limit: float | None, clear: float | None) -> None:
        if limit is not None and not 0 < limit < 200:
            raise kdp.ConfigurationError(
                f"max_temperature={limit:g}: must be degrees Celsius between 0 and 200; for example max_temperature=90"
            )
        if clear is not None and limit is None:
            raise kdp.ConfigurationError(
                f"clear_temperature={clear:g} without max_temperature: boards have limits of their own then, and are "
                "cool again 5 degrees below; give both or neither"
            )
        if clear is not None and limit is not None and not clear < limit:
            raise kdp.ConfigurationError(
                f"clear_temperature={clear:g} is not below max_temperature={limit:g}: a board that is too hot could "
                "never be cool again; for example max_temperature=90, clear_temperature=80"
            )
        self._limit = limit
        self._clear = clear
        self._hot: set[str] = set()

    def fault(self, board: str, directory: kdp.hardware.Directory) -> str | None:
        """Return that a board is too hot, as a sentence; None: it is not.

        Args:
            board: What it is called, for the memory.
            directory: What has its sensors.
        """
        for sensor in SENSORS:
            above, _, name = sensor.now.rpartition("/")
            for place in directory.children(above):
                reading = place.integer(name)
                if not reading.is_absent:
                    return self._judge(board, place, sensor, reading)
        return None

    def _judge(
        self, board: str, place: kdp.hardware.Directory, sensor: Sensor, reading: kdp.hardware.Reading[int]
    ) -> str | None:
        own = place.integer(sensor.limit).value if sensor.limit else None
        if own is not None and not 0 < own < SENSIBLE:
            own = None  # nobody has set one
        if reading.value is not None and abs(reading.value) >= SENSIBLE:
            reading = attrs.evolve(reading, value=None, problem=f"{reading.path} does not hold a temperature")
        limit = self._limit if self._limit is not None else None if own is None else own * sensor.unit
        alarm = self._limit is None and sensor.alarm is not None and place.flag(sensor.alarm).value is True
        if reading.value is None or (limit is None and not alarm):
            return "was too hot, and its sensor cannot be read now" if board in self._hot and reading.problem else None
        now = reading.value * sensor.unit
        if alarm or (limit is not None and now >= limit):
            self._hot.add(board)
        elif limit is not None and now <= (self._clear if self._clear is not None else limit - _MARGIN):
            self._hot.discard(board)
        if board not in self._hot:
            return None
        return f"is {now:g} °C hot" + ("" if limit is None else f", the limit is {limit:g} °C")

    def keep(self, boards: set[str]) -> None:
        """Forget all other boards: they are gone."""
        self._hot &= boards
