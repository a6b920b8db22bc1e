"""`GpuConfig`: what a DRA claim may ask of its GPUs, and how that is done and undone.

NVML sets a limit of power for a whole GPU only, for root only, and forgets it when the driver is unloaded. What is
undone is set to the driver's default: it is always known, also after a crash between the change and the note of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import attrs

import kdp

from .nvml import ask, pynvml, reason
from .timeslices import Interval, require_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .gpus import Gpu


@attrs.frozen(kw_only=True)
class TimeSlicing:
    """How long a process has the GPU before it is another's turn.

    Attributes:
        interval: ``Default``, ``Short``, ``Medium`` or ``Long``.
    """

    interval: Interval = "Default"


@attrs.frozen(kw_only=True)
class Sharing:
    """How a GPU is shared, in the words of NVIDIA's DRA driver.

    Attributes:
        strategy: ``TimeSlicing`` is the only one that a claim can ask for here.
        time_slicing_config: Of that strategy.
    """

    strategy: Literal["TimeSlicing"] = "TimeSlicing"
    time_slicing_config: TimeSlicing = attrs.field(factory=TimeSlicing)


@attrs.frozen(kw_only=True)
class GpuConfig:
    """The parameters of a claim, as ``{apiVersion: gpu.nvidia.com/v1, kind: GpuConfig, powerLimit: 500}``.

    Attributes:
        power_limit: Watts that each of the GPUs may take; None: as it is.
        sharing: How those that use the GPUs at a time share them; None: as it is.
    """

    power_limit: int | None = None
    sharing: Sharing | None = None

    @property
    def interval(self) -> Interval | None:
        """The length of time slices that is asked for; None: there is none."""
        return None if self.sharing is None else self.sharing.time_slicing_config.interval


def limit_power(devices: Sequence[kdp.Device], watts: int) -> None:
    """Set the limit of each GPU; all of them, or none.

    Args:
        devices: Whole GPUs.
        watts: The limit.

    Raises:
        kdp.AllocationError: One is not a whole GPU, cannot have this limit, or NVML refuses.
    """
    for device in devices:
        require_whole(device, f"powerLimit {watts}", "a limit")
        bounds = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, device.handle.handle)
        if bounds is None:
            raise kdp.AllocationError(f"powerLimit {watts}: the power of {device.id} cannot be limited; leave it out")
        least, most = (milliwatts // 1000 for milliwatts in bounds)
        if not least <= watts <= most:
            raise kdp.AllocationError(
                f"powerLimit {watts}: {device.id} takes {least} to {most} W; ask for one of these"
            )
    for device in devices:
        try:
            pynvml.nvmlDeviceSetPowerManagementLimit(device.handle.handle, 1000 * watts)
        except pynvml.NVMLError as error:
            restore_power(devices)
            hint = "; the plugin must be root" if error.value == pynvml.NVML_ERROR_NO_PERMISSION else ""
            raise kdp.AllocationError(f"powerLimit {watts}: {device.id}: {reason(error)}{hint}") from None


def restore_power(devices: Sequence[kdp.Device]) -> None:
    """Give each GPU its default limit. One that is lost or gone has none to give back."""
    for device in devices:
        handle: Any = None if device.handle is None else cast("Gpu", device.handle).handle
        default = None if handle is None else ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        if default is not None:
            ask(pynvml.nvmlDeviceSetPowerManagementLimit, handle, default)
