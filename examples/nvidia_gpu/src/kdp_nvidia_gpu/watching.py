"""`Watcher`: what happens between two discoveries: errors, their end, and processes that stay on a GPU.

It runs in the thread of the hook ``watch`` and reports; what it needs to know of the GPUs the newest discovery tells
it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

from .events import Event, EventSet
from .gpus import Gpu, is_remap_pending, problem_of
from .nvml import GpuLost, pynvml, reason
from .recovery import AGAIN, Recovery
from .xids import Severity, XidPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import kdp

    from .nvml import Nvml
    from .options import Options

logger = logging.getLogger(__name__)

WAIT = 1000
"""Milliseconds of one wait for an event, which nobody can interrupt: so late at most we notice that we are to stop."""

LOOK = 1.0
"""Seconds between two looks at who is on a GPU that must be idle, and after a wait that failed."""


def pids_of(handle: Any) -> list[int] | None:
    """Return the processes that compute on a GPU or MIG instance; None: this NVML never says.

    Raises:
        GpuLost: It does not say it now.
    """
    why: Exception | None = None
    for call in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        try:
            return sorted(process.pid for process in getattr(pynvml, call)(handle))
        except pynvml.NVMLError as error:
            is_unknown_to_it = error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            why = why or (None if is_unknown_to_it else error)
    if why is not None:
        raise GpuLost(reason(why))
    return None


@attrs.frozen
class _Known:
    """What the newest discovery found, in one piece: it is replaced, never changed."""

    gpus: dict[str, Gpu] = attrs.field(factory=dict[str, Gpu])

    def handle(self, target: str) -> Any:
        """Return NVML's handle of a GPU or an instance by UUID; None: it is lost or no longer there."""
        gpu = self.gpu_of(target)
        if gpu is None or gpu.handle is None or gpu.uuid == target.partition("/")[0]:
            return gpu.handle if gpu else None
        return next(instance.handle for instance in gpu.instances if instance.uuid == target)

    def gpu_of(self, target: str) -> Gpu | None:
        """Return the GPU that a UUID is of, or of which it names an instance."""
        unit = target.partition("/")[0]  # of a part of a GPU, the GPU
        if unit in self.gpus:
            return self.gpus[unit]
        return next((gpu for gpu in self.gpus.values() if target in [i.uuid for i in gpu.instances]), None)


class Watcher:
    """Watches; see `run`. Other threads may call `know` and `must_be_idle` at any time."""

    def __init__(self, nvml: Nvml, options: Options) -> None:
        self._nvml = nvml
        self._options = options
        self._known = _Known()
        self._recovery = Recovery(options.hold_down)
        self._busy: dict[str, str] = {}
        self._lock = threading.Lock()
        self._report: kdp.Reporter | None = None
        self._told = ""
        self._silent: dict[str, str] = {}
        self._next_look = 0.0
        self._next_scan = 0.0
        self._heard: frozenset[str] = frozenset()
        self._last_xids: dict[str, int] = {}

    def know(self, gpus: Iterable[Gpu]) -> None:
        """Take what a discovery has found."""
        self._known = _Known({gpu.uuid: gpu for gpu in gpus})

    def last_xid(self, uuid: str) -> int | None:
        """Return the last error that the driver told of a GPU; 0: none so far; None: nobody hears of its errors."""
        return self._last_xids.get(uuid, 0) if uuid in self._heard else None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def run(self, report: kdp.Reporter) -> None:
        """Wait for events and report them, until told to stop.

        Raises:
            kdp.NotReady: The driver is gone.
        """
        self._nvml.open()  # our own, so that it is not shut down while we wait
        try:
            self._report = report
            while not report.stopping.is_set():
                handles = self._wanted()
                try:
                    with EventSet(handles) as events:
                        self._heard = frozenset(handles.keys() - events.silent.keys())
                        self._tell_silent(events.silent)
                        self._while_same(handles, events, report)
                except GpuLost as error:
                    self._tell(f"waiting for events failed: {error}; looking at all GPUs instead")
                    report.rescan()
                    self._settle(report)
                    report.stopping.wait(LOOK)
        finally:
            self._report = None
            self._heard = frozenset()
            self._nvml.close()

    def _wanted(self) -> dict[str, Any]:
        if self._options.xids.is_off and self._options.mig == "none":
            return {}
        return {uuid: gpu.handle for uuid, gpu in self._known.gpus.items() if gpu.handle is not None}

    def _while_same(self, handles: dict[str, Any], events: EventSet, report: kdp.Reporter) -> None:
        """Wait while the GPUs are the same; one that was lost and is back must be asked for its events again."""
        known = None
        while not report.stopping.is_set():
            if known is not self._known:
                known = self._known
                if self._wanted().keys() != handles.keys():
                    return
            if events.is_empty:
                report.stopping.wait(LOOK)
            elif (event := events.wait(WAIT)) is not None:
                self._happened(event, report)
            self._settle(report)

    def _tell(self, text: str) -> None:
        if text != self._told:
            logger.warning("%s", text)
        self._told = text

    def _tell_silent(self, silent: Mapping[str, str]) -> None:
        for uuid, why in silent.items():
            if self._silent.get(uuid) != why:
                logger.warning(
                    "%s: NVML reports no events of it (%s); its errors are not seen, only its loss", uuid, why
                )
        self._silent = {**silent}

    # -- errors --------------------------------------------------------------------------------------------------------

    def _happened(self, event: Event, report: kdp.Reporter) -> None:
        if event.xid is None or event.uuid is None:
            report.rescan()
            return
        self._last_xids[event.uuid] = event.xid
        xid = self._options.xids.of(event.xid)
        text = f"XID {xid.code}: {xid.name}"
        if xid.severity is Severity.APPLICATION:
            is_usual = XidPolicy().of(event.xid) == xid
            why = "an application's error, the GPU is well" if is_usual else "ignored, as the option xids says"
            logger.info("%s: %s; %s", event.uuid, text, why)
            return
        if xid.severity is not Severity.NOTICE:
            targets = self._targets(event)
            report.fault(targets, text, kind=f"xid-{xid.code}")
            for target in targets:
                self._recovery.happened(target, f"xid-{xid.code}", time.monotonic())
                logger.error(
                    "%s: %s%s",
                    target,
                    text,
                    "; worth a node condition" if xid.severity is Severity.CONDITION else "",
                    extra={"device_id": target, "xid": xid.code, "severity": xid.severity.value},
                )
        report.rescan()

    def _targets(self, event: Event) -> list[str]:
        """Return whom an error concerns: the instances that it names, or the GPU."""
        assert event.uuid is not None
        gpu = self._known.gpus.get(event.uuid)
        if event.gi is None or gpu is None or self._options.mig == "none":
            return [event.uuid]
        meant = [i.uuid for i in gpu.instances if i.gi == event.gi and event.ci in (None, i.ci)]
        # What was made for a claim is known by its place.
        named = [f"{gpu.uuid}/{gpu.made[uuid].name}" if uuid in gpu.made else uuid for uuid in meant]
        return named or [event.uuid]

    def _settle(self, report: kdp.Reporter) -> None:
        """Look at what may be well again."""
        now = time.monotonic()
        for target in self._recovery.due(now):
            problem = self._problem(target)
            over = self._recovery.looked(target, problem, now)
            for kind in over:
                report.clear(target, kind=kind)
            if over:
                logger.info("%s has recovered from %s", target, ", ".join(over), extra={"device_id": target})
        if now >= self._next_scan and any(gpu.problem for gpu in self._known.gpus.values()):
            # Nothing tells that a GPU is back, and with a long poll_interval nobody would look.
            self._next_scan = now + min(AGAIN, self._options.hold_down or AGAIN)
            report.rescan()
        if self._busy and now >= self._next_look:
            self._next_look = now + LOOK
            with self._lock:
                for target in [*self._busy]:
                    self._look_who(target, report)

    def _problem(self, target: str) -> str | None:
        """Return what is still wrong with the GPU of a target; one that is no longer there has nothing."""
        gpu = self._known.gpu_of(target)
        if gpu is None:
            return None
        if gpu.handle is None:
            return gpu.problem
        try:
            problem = problem_of(gpu.handle, check_fabric=self._options.fabric_check)
            return problem or ("a row remap is pending" if is_remap_pending(gpu.handle) else None)
        except GpuLost as error:
            return str(error)

    # -- processes that stay -------------------------------------------------------------------------------------------

    def must_be_idle(self, target: str) -> None:
        """See to it that a GPU that was given back is Unhealthy until nobody computes on it."""
        with self._lock:
            self._busy.setdefault(target, "")
            if self._report is not None:  # else `run` looks when it begins
                self._look_who(target, self._report)

    def _look_who(self, target: str, report: kdp.Reporter) -> None:
        """Say who uses a GPU, if that is another answer than the last one. With the lock."""
        before = self._busy.pop(target)
        now = self._use_of(target, before)
        if now:
            self._busy[target] = now
        if now and now != before:
            report.fault(target, now, kind="busy")
            logger.warning("%s was given back and is %s", target, now, extra={"device_id": target})
        elif before and not now:
            report.clear(target, kind="busy")
            logger.info("%s is idle again", target, extra={"device_id": target})

    def _use_of(self, target: str, before: str) -> str:
        """Return who uses a GPU, in words; empty if nobody does, or the GPU is gone.

        While NVML fails, the answer is that it is in use.
        """
        if self._known.gpu_of(target) is None:
            return ""
        handle = self._known.handle(target)
        try:
            if handle is None:
                raise GpuLost("it is lost")
            pids = pids_of(handle)
        except GpuLost as error:
            return before or f"perhaps in use: NVML does not report who computes on it: {error}"
        if pids is None:
            self._tell(f"{target}: NVML does not report who computes on it, so require_idle has no effect")
        return f"in use by pid {', '.join(map(str, pids))}" if pids else ""
