"""Waiting for NVML's events: errors (XIDs) and changes of MIG's configuration."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, final

import attrs

from .nvml import ask, must, pynvml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

NO_INSTANCE = 0xFFFFFFFF

_WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange


@attrs.frozen(kw_only=True)
class Event:
    """What happened.

    Attributes:
        uuid: On which GPU; None: NVML names one that we do not know.
        xid: The error's number; None: MIG's configuration has changed.
        gi: The GPU instance that it concerns; None: the whole GPU.
        ci: The compute instance in it; None: all of them.
    """

    uuid: str | None
    xid: int | None
    gi: int | None = None
    ci: int | None = None


def address_of(handle: Any) -> int | None:
    """Return what tells one of NVML's handles from another; None: that of no GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value


@final
class EventSet:
    """The events of some GPUs; a context manager. For one thread, which may not be interrupted while it waits.

    Attributes:
        silent: The GPUs that tell no events, and why.
    """

    def __init__(self, handles: Mapping[str, Any]) -> None:
        """Ask for the events of these GPUs, by UUID; one that has none is polled only.

        Raises:
            kdp.NotReady: The driver is gone.
            GpuLost: There are no events at all.
        """
        self._set: Any = must(pynvml.nvmlEventSetCreate)
        self._uuids: dict[int | None, str] = {}
        self.silent: dict[str, str] = {}
        for uuid, handle in handles.items():
            supported = ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            # A driver that does not say what it has may refuse all because of the one that it has not.
            wanted = pynvml.nvmlEventTypeXidCriticalError if supported is None else _WANTED & supported
            try:
                if not wanted:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
            except pynvml.NVMLError as error:
                self.silent[uuid] = str(error)
            else:
                self._uuids[address_of(handle)] = uuid

    def __enter__(self) -> EventSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ask(pynvml.nvmlEventSetFree, self._set)

    @property
    def is_empty(self) -> bool:
        """Whether no GPU tells events: NVML waits for ever for nothing then, or refuses to."""
        return not self._uuids

    def wait(self, milliseconds: int) -> Event | None:
        """Return the next event; None: there was none in that time.

        Raises:
            kdp.NotReady: The driver is gone.
            GpuLost: Waiting failed, as it does when a GPU is lost.
        """
        data = must(wait_for_event, self._set, milliseconds)
        if data is None:
            return None
        return Event(
            uuid=self._uuids.get(address_of(data.device)) or ask(pynvml.nvmlDeviceGetUUID, data.device),
            xid=int(data.eventData) if data.eventType == pynvml.nvmlEventTypeXidCriticalError else None,
            gi=None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId),
            ci=None if data.computeInstanceId == NO_INSTANCE else int(data.computeInstanceId),
        )


def wait_for_event(events: Any, milliseconds: int) -> Any:
    """Return the next event of the set, or None if none comes in this time."""
    try:
        return pynvml.nvmlEventSetWait_v2(events, milliseconds)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise
