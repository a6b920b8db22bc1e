"""What a backend measures of its devices: asked of its hook ``measure`` at its own pace, and checked.

A scrape does not wait for the hook: it reads what was measured last. If the hook fails or hangs, no value is known
until it succeeds again, because an old number would look like a new one.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast, final

import anyio
import attrs

from ..errors import HookError, InvalidValueError, sentence
from ..model.backend import WrappedBackend
from ..model.text import shown_value
from .backend_validation import resource_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..model.backend import DeviceBackend
    from ..model.devices import Device
    from ..model.measurements import Measurement
    from .hooks import Hooks
    from .publisher import DiscoveryPublisher

logger = logging.getLogger(__name__)

MOST_DEVICES: Final = 1024
"""Devices of a backend whose measurements are kept."""

MOST_MISTAKES: Final = 100
"""Mistakes that are remembered, so that each is told one time."""

_shown = functools.partial(shown_value, most=80)


@final
@attrs.frozen
class Measured:
    """What was measured of one device.

    Attributes:
        resource: The resource that it belongs to.
        values: By measurement.
    """

    resource: str
    values: Mapping[str, float]


@final
class Measuring:
    """What one backend measures.

    Args:
        label: What texts call the backend.
        declared: What it measures, checked.

    Attributes:
        declared: As given.
        values: What was measured last, by device id. Of shared devices these are the devices themselves, and not their
            replicas: one card that is advertised four times uses its power one time.
        asked_at: When the hook was called last, also before the backend was opened anew.
    """

    def __init__(self, label: str, declared: Sequence[Measurement]) -> None:
        self.declared = tuple(declared)
        self.values: Mapping[str, Measured] = {}
        self.asked_at = float("-inf")
        self._label = label
        self._counters = {each.name: each.kind == "counter" for each in declared}
        self._units = {each.name: each.unit for each in declared}
        self._mistakes: set[str] = set()

    async def follow(
        self, hooks: Hooks, publisher: DiscoveryPublisher, backend: DeviceBackend, *, deadline: float
    ) -> NoReturn:
        """Ask what the devices measure, in each ``measure_interval``, until the hook raises `NotReady`."""
        logged = ""
        interval = backend.measure_interval  # as it was checked with the last discovery
        try:
            while True:
                await anyio.sleep(max(0.0, self.asked_at + interval - time.monotonic()))
                self.asked_at = time.monotonic()
                take = functools.partial(self.take, known=_known(publisher.devices, backend))
                try:
                    self.values = await hooks.call("measure", deadline=deadline, then=take)
                except HookError as error:
                    self.values = {}
                    if sentence(error) != logged:
                        logged = sentence(error)
                        logger.warning("%s: %s; nothing is measured meanwhile", hooks.label, logged)
                else:
                    logged = ""
        finally:
            self.values = {}

    def take(self, found: Any, known: Mapping[str, str]) -> Mapping[str, Measured]:
        """Return what can be used of what ``measure`` returned; what cannot is told in the log. In the hook's thread.

        Args:
            found: What it returned.
            known: The resources of the devices that there are, by id.

        Raises:
            InvalidValueError: It is no mapping.
        """
        if not isinstance(found, Mapping):
            raise InvalidValueError(
                f"it returned {_shown(found)}: must map device ids to measurements; for example "
                "{'gpu-0': {'gpu_utilization': 0.5}}"
            )
        values: dict[str, Measured] = {}
        for device_id, measured in cast("Mapping[object, object]", found).items():
            if not isinstance(device_id, str) or device_id not in known:
                self._complain("unknown device", f"measured {_shown(device_id)}, which was not discovered")
            elif len(values) >= MOST_DEVICES:
                self._complain("too many", f"measured more than {MOST_DEVICES} devices; the others are left out")
                break
            else:
                checked = self._checked(device_id, measured)
                values[device_id] = Measured(known[device_id], checked)
        return values

    def _checked(self, device_id: str, measured: object) -> dict[str, float]:
        values: dict[str, float] = {}
        if not isinstance(measured, Mapping):
            self._complain("no mapping", f"gave {_shown(measured)} for {device_id}: must map measurements to values")
            return values
        for name, value in cast("Mapping[object, object]", measured).items():
            if not isinstance(name, str) or name not in self._counters:
                self._complain(
                    f"unknown {_shown(name)}",
                    f"measured {_shown(name)}, which is not in the class attribute 'measurements': declare it there",
                )
            elif (number := _number(value)) is None:
                self._complain(
                    f"value of {name}",
                    f"gave {_shown(value)} for {name} of {device_id}: must be a finite number; leave out what is not "
                    "known",
                )
            elif number < 0 and self._counters[name]:
                self._complain(
                    f"value of {name}", f"gave {number:g} for {name} of {device_id}: a counter is not negative"
                )
            elif (rule := _implausible(number, self._units[name])) is not None:
                self._complain(f"value of {name}", f"gave {number:g} for {name} of {device_id}: {rule}")
            else:
                values[name] = number
        return values

    def _complain(self, mistake: str, text: str) -> None:
        """Tell a mistake, for the first device that shows it."""
        if mistake not in self._mistakes and len(self._mistakes) < MOST_MISTAKES:
            self._mistakes.add(mistake)
            logger.warning("measure() of %s %s", self._label, text)


def _number(value: object) -> float | None:
    """Return a finite number; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


_PLAUSIBLE: Final = {
    "ratio": (0.0, 1.5, "divide percent by 100"),
    "celsius": (-273.15, 1_000.0, "divide millidegrees by 1000"),
    "watts": (-50_000.0, 50_000.0, "divide microwatts by 1000000"),
    "volts": (-1_000.0, 1_000.0, "divide millivolts by 1000"),
    "amperes": (-5_000.0, 5_000.0, "divide milliamperes by 1000"),
}
"""The least and the largest value of a device by unit, and the conversion from the unit of Linux's hwmon or of percent.

Source of hwmon's units: the kernel's Documentation/hwmon/sysfs-interface.rst.
"""


def _implausible(number: float, unit: str) -> str | None:
    """Return the rule that a value breaks, because it is in another unit than declared; `None` if it breaks none."""
    low, high, cure = _PLAUSIBLE.get(unit, (-math.inf, math.inf, ""))
    return None if low <= number <= high else f"{unit} must be from {low:g} to {high:g}; {cure}"


def _known(devices: Iterable[Device], backend: DeviceBackend) -> Mapping[str, str]:
    place: Callable[[str], str] = backend.device_of if isinstance(backend, WrappedBackend) else str
    return {place(device.id): resource_of(device, backend) for device in devices}
