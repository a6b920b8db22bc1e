"""`DeviceManager`: the kubelet's own device manager as a process, with the simulated kubelet's manners.

What a test says to `kdp.testing.SimulatedKubelet` it can say to this: the same pods, the same errors, the same names.
The process speaks JSON lines, which README.md describes; killing it is a kubelet's crash.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import attrs
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.kubelet import KubeletPaths
from kdp.testing import (
    AdmissionError,
    AdmittedContainer,
    AdmittedPod,
    Container,
    ContainerReply,
    ContainerStartError,
    DeviceSpec,
    KubeletPanic,
    MountSpec,
    Pod,
    ScenarioError,
)
from kdp_testkit.patience import PATIENCE

from .tools import SPARE_THE_PROCESSOR, Minor

__all__ = ["Count", "DeviceManager", "DeviceManagerEnded", "NotReached"]

_LINE = 64 << 20
_ANSWER_SECONDS = 60.0


class DeviceManagerEnded(Exception):
    """The process ended although nobody asked it to; the text has the end of its log."""


class NotReached(TimeoutError):
    """A condition that a test waited for did not come true; the text has what happened instead."""


@attrs.frozen
class Count:
    """What the node would report, from one moment on.

    Attributes:
        at: When, in Unix seconds.
        life: In which life of the kubelet, from 1.
        capacity: Healthy and unhealthy devices by resource.
        allocatable: Healthy devices by resource.
    """

    at: float
    life: int
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]


@attrs.define
class _Bound:
    """A pod that has not failed, and which of its containers run."""

    pod: Pod
    admitted_in: int
    started: bool = False
    running: set[str] = attrs.field(factory=set[str])


class DeviceManager(AsyncContextManagerMixin):
    """A kubelet's real device manager, topology manager, plugin watcher and pod-resources server.

    An async context manager (asyncio only): started on entry, killed on exit; its directory is removed.

    Args:
        minor: Which Kubernetes.
        root: The kubelet's root directory, kept at the end; default: a temporary one.
        topology_policy: ``none``, ``best-effort``, ``restricted`` or ``single-numa-node``.
        topology_scope: ``container`` or ``pod``.
        numa_nodes: NUMA nodes of the machine.
        feature_gates: The kubelet's, as ``A=true``.
        verbosity: Of the kubelet's log.
        look: Seconds between two looks at capacity and allocatable.
        observe: Is given all that is told of the calls between kubelet and plugins, at once. Each Register waits then
            until `tell` has said "treat".
        autostart: Whether it runs when the context is entered.
        flags: More of the command's own.

    Attributes:
        paths: Its directories.
        minor: Which Kubernetes it is; another one at the next start is an upgrade.
        counts: Each change of capacity or allocatable that was seen.
        listening_at: When kubelet.sock was listened at in this life, in Unix seconds.
        affected: The pods whose status the kubelet would have written again because of a device's health, in order.
    """

    def __init__(
        self,
        minor: Minor,
        *,
        root: Path | None = None,
        topology_policy: str = "none",
        topology_scope: str = "container",
        numa_nodes: int = 2,
        feature_gates: str = "",
        verbosity: int = 3,
        look: float = 0.001,
        observe: Callable[[dict[str, Any]], None] | None = None,
        autostart: bool = True,
        flags: Sequence[str] = (),
    ) -> None:
        self._temporary = None if root is not None else Path(tempfile.mkdtemp(prefix="kdp-"))
        base = root or self._temporary
        assert base is not None
        self.paths = KubeletPaths.simulated(base)
        self.minor = minor
        self._base = base
        self._log = base / "kubelet.log"
        self._flags = [
            f"-root={base}",
            f"-topology-policy={topology_policy}",
            f"-topology-scope={topology_scope}",
            f"-numa-nodes={numa_nodes}",
            f"-feature-gates={feature_gates}",
            f"-v={verbosity}",
            f"-look={look:f}s",
            f"-observe={str(observe is not None).lower()}",
            *flags,
        ]
        self._observe = observe
        self._autostart = autostart
        self.counts: list[Count] = []
        self.affected: list[str] = []
        self.listening_at = 0.0
        self.is_watcher_on = True
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._changed = anyio.Event()
        self._lives = 0
        self._pods: dict[str, _Bound] = {}
        self._shown: dict[str, int] = {}
        self._sources_ready = True

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            if self._autostart:
                await self.start()
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the kubelet's process is there."""
        return self._process is not None

    async def start(self, *, minor: Minor | None = None, listen_delay: float = 0.0) -> None:
        """Start the process, and in it the managers; returns when kubelet.sock is listened at.

        Args:
            minor: Another version than before: an upgrade or a downgrade.
            listen_delay: Seconds between bind(2) and listen(2) of kubelet.sock, for one that is observed.
        """
        if self._process is not None:
            raise ScenarioError("the kubelet is running already; restart it, or kill it first")
        if minor is not None:
            self.minor = minor
        self._lives += 1
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self.minor.devmgr,
                *self._flags,
                f"-watcher={str(self.is_watcher_on).lower()}",
                env={**os.environ, **SPARE_THE_PROCESSOR},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE,
            )
        self._reader = asyncio.create_task(self._read(self._process, self._lives))
        self._sources_ready = not self._pods
        running = {uid: sorted(bound.running) for uid, bound in self._pods.items() if bound.running}
        await self.ask("start", ready=self._sources_ready, running=running, shown=self._shown, seconds=listen_delay)

    async def stop(self) -> None:
        """Let the device manager end in its own good order; a kubelet's process does not come to this (see `crash`)."""
        await self.ask("stop")
        await self._end()

    async def crash(self) -> None:
        """Kill it: connections break, kubelet.sock stays as a dead file."""
        if self._process is None:
            raise ScenarioError("the kubelet is not running: it cannot crash")
        await self._end()

    async def restart(self, *, down: float = 0.0, reboot: bool = False, minor: Minor | None = None) -> None:
        """Kill it and start it again on the same directory.

        Args:
            down: Seconds without a kubelet.
            reboot: No container runs any more.
            minor: Another version than before.
        """
        await self.crash()
        if reboot:
            self.node_reboots()
        if down > 0:
            await anyio.sleep(down)
        await self.start(minor=minor)

    def node_reboots(self) -> None:
        """Let no container run any more; the kubelet must be down."""
        for bound in self._pods.values():
            bound.running.clear()
            bound.started = False

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._reader is not None:
            await self._reader
            self._reader = None

    async def _read(self, process: asyncio.subprocess.Process, life: int) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # it was killed in the middle of a line
            match said["event"]:
                case "answer":
                    waiting = self._answers.pop(said["id"], None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(said)
                case "count" | "list":
                    if "shown" in said:
                        self._shown = said["shown"]
                        self.counts.append(Count(said["t"], life, said["capacity"], said["allocatable"]))
                    if self._observe is not None and said["event"] == "list":
                        self._observe(said)
                case "started":
                    self.listening_at = said["t"]
                case "pods_affected":
                    self.affected.extend(said["uids"])
                case _:
                    if self._observe is not None:
                        self._observe(said)
            self._wake()
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(DeviceManagerEnded(f"devmgr {self.minor.name} ended; its log:\n{self.log(40)}"))
        self._answers.clear()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def tell(self, do: str, **fields: Any) -> None:
        """Ask for something and do not wait for the answer; nothing happens if the process is not there."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")

    async def ask(self, do: str, *, within: float = _ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """Ask for something and return the answer.

        Raises:
            ScenarioError: It could not be done.
            DeviceManagerEnded: The process ended before.
            TimeoutError: No answer came within so many seconds.
        """
        process = self._process
        if process is None:
            raise ScenarioError(f"the kubelet is not running: {do!r} cannot be asked of it")
        assert process.stdin is not None
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        line = json.dumps({"id": number, "do": do, **fields})
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError:
            raise DeviceManagerEnded(f"devmgr {self.minor.name} ended; its log:\n{self.log(40)}") from None
        with anyio.fail_after(within):
            said = await answer
        if said.get("error"):
            raise ScenarioError(f"{do}: {said['error']}")
        return said

    # -- what it believes ----------------------------------------------------------------------------------------------

    def capacity(self) -> dict[str, int]:
        """Return the capacity that it told last in this life; see `count` for now."""
        return dict(self._last.capacity) if self._last is not None else {}

    def allocatable(self) -> dict[str, int]:
        """Return the allocatable devices that it told last in this life."""
        return dict(self._last.allocatable) if self._last is not None else {}

    @property
    def _last(self) -> Count | None:
        last = self.counts[-1] if self.counts else None
        return last if last is not None and last.life == self._lives and self._process is not None else None

    async def count(self) -> Count:
        """Ask for capacity and allocatable now, as the node's status update does."""
        said = await self.ask("count")
        return Count(said["t"], self._lives, said["capacity"], said["allocatable"])

    async def devices(self) -> dict[str, dict[str, list[int]]]:
        """Return the healthy devices: resource -> id -> its NUMA nodes."""
        said = await self.ask("devices")
        found: dict[str, dict[str, list[int]]] = said["devices"]
        return found

    async def hints(self, pod: Pod) -> dict[str, dict[str, list[tuple[tuple[int, ...], bool]]]]:
        """Return the topology hints: container -> resource -> NUMA nodes and whether they are preferred."""
        said = await self.ask("hints", pod=_spec(pod))
        return {
            container: {
                resource: sorted((tuple(hint["nodes"] or ()), bool(hint["preferred"])) for hint in hints)
                for resource, hints in resources.items()
            }
            for container, resources in said["hints"].items()
        }

    async def health(self, pod: Pod) -> dict[str, dict[str, dict[str, str]]]:
        """Return the health in the pod's status: container -> resource -> device id -> health."""
        said = await self.ask("health", uid=pod.uid)
        found: dict[str, dict[str, dict[str, str]]] = said["health"]
        return found

    async def checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint as it is on disk."""
        found: dict[str, Any] = (await self.ask("checkpoint"))["checkpoint"]
        return found

    async def age(self, seconds: float) -> None:
        """Let every plugin that is gone have gone this long ago: five minutes pass at once."""
        await self.ask("age", seconds=seconds)

    def log(self, lines: int | None = None) -> str:
        """Return the kubelet's log, or its last lines."""
        try:
            said = self._log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(said if lines is None else said[-lines:])

    def story(self) -> str:
        """Return what a failed test needs: the counts and the log's end."""
        told = "\n".join(
            f"{c.at:.3f} life {c.life}: capacity {c.capacity}, allocatable {c.allocatable}" for c in self.counts
        )
        return f"{told}\n{self.log(120)}"

    async def until(
        self,
        condition: Callable[[], object] | None = None,
        *,
        capacity: Mapping[str, int] | None = None,
        allocatable: Mapping[str, int] | None = None,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - a deadline for tests, with a story
    ) -> Count:
        """Wait until everything that is asked for holds at the same time.

        Args:
            condition: Holds when it returns something true; looked at whenever the kubelet says something.
            capacity: These resources have exactly these capacities; others do not matter.
            allocatable: These resources have exactly this many allocatable devices.
            timeout: Seconds to wait.

        Returns:
            The count with which it came true.

        Raises:
            NotReached: It did not hold in time.
        """

        def holds() -> bool:
            last = self._last
            for wanted, have in ((capacity, self.capacity()), (allocatable, self.allocatable())):
                if wanted is not None and (last is None or any(have.get(k) != n for k, n in wanted.items())):
                    return False
            return condition is None or bool(condition())

        try:
            with anyio.fail_after(timeout):
                while not holds():
                    if self._reader is not None and self._reader.done():
                        raise DeviceManagerEnded(f"devmgr {self.minor.name} ended; its log:\n{self.log(40)}")
                    await self._changed.wait()
        except TimeoutError:
            raise NotReached(
                f"not reached in {timeout:g} s: capacity {capacity}, allocatable {allocatable}, condition {condition}; "
                f"kubelet {self.minor.release}:\n{self.story()}"
            ) from None
        return self._last or Count(time.time(), self._lives, {}, {})

    # -- pods ----------------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that have not failed, by uid."""
        return {uid: bound.pod for uid, bound in self._pods.items()}

    async def admit(self, pod: Pod, *, start: bool = True) -> AdmittedPod:
        """Admit a pod, then start its containers.

        Raises:
            AdmissionError: The kubelet refused it; it is gone from the node.
            ContainerStartError: It is admitted, but a container could not be started.
        """
        known = self._pods.get(pod.uid)
        if known is not None and known.admitted_in == self._lives:
            raise ScenarioError(f"pod {pod.name!r} was admitted already, and the kubelet has not restarted since")
        if known is None and not self._sources_ready:
            await self._set_sources_ready()
        bound = known or _Bound(pod, self._lives)
        bound.pod, bound.admitted_in = pod, self._lives
        self._pods[pod.uid] = bound
        start = start and not bound.started
        try:
            said = await self.ask("admit", pod=_spec(pod), start=start)
        except BaseException as error:
            if known is None:
                self._pods.pop(pod.uid, None)
            if isinstance(error, DeviceManagerEnded) and "panic: " in self.log():
                await self._end()
                raise KubeletPanic(self.log(60)) from error
            raise
        if not said["admitted"]:
            del self._pods[pod.uid]
            raise AdmissionError(said["reason"], said["message"])
        if start:
            for container in pod.in_order:
                given = said["containers"][container.name]
                if "error" in given:
                    raise ContainerStartError(container.name, given["error"])
                self._started(bound, container)
            bound.started = True
        return AdmittedPod(pod=pod, containers={name: _given(what) for name, what in said["containers"].items()})

    def _started(self, bound: _Bound, container: Container) -> None:
        if container.restartable or container in bound.pod.containers:
            bound.running.add(container.name)

    async def start_container(self, pod: Pod, container: str = "main") -> AdmittedContainer:
        """Start a container of an admitted pod (again).

        Raises:
            ContainerStartError: It could not be started.
        """
        said = await self.ask("start_container", uid=pod.uid, container=container)
        if "failure" in said:
            raise ContainerStartError(container, said["failure"])
        bound = self._pods[pod.uid]
        self._started(bound, next(each for each in pod.in_order if each.name == container))
        return _given(said)

    async def readmit(self) -> dict[str, AdmittedPod | AdmissionError]:
        """Admit all known pods again: the API server's first word after a restart."""
        if self._sources_ready:
            raise ScenarioError("the kubelet already has the pods of the API server; only a restart brings them again")
        outcome: dict[str, AdmittedPod | AdmissionError] = {}
        for uid, bound in list(self._pods.items()):
            if bound.admitted_in == self._lives:
                continue
            try:
                outcome[uid] = await self.admit(bound.pod)
            except AdmissionError as error:
                outcome[uid] = error
        await self._set_sources_ready()
        return outcome

    async def _set_sources_ready(self) -> None:
        self._sources_ready = True
        await self.ask("ready", ready=True)

    async def delete(self, pod: Pod) -> None:
        """Remove a pod from the node; its devices are freed at the kubelet's next look."""
        del self._pods[pod.uid]
        if self._process is not None:
            await self.ask("remove", uid=pod.uid)


def _spec(pod: Pod) -> dict[str, Any]:
    def containers(all_: Sequence[Container]) -> list[dict[str, Any]]:
        return [{"name": c.name, "limits": dict(c.limits), "sidecar": c.restartable} for c in all_]

    return {
        "uid": pod.uid,
        "name": pod.name,
        "namespace": pod.namespace,
        "init_containers": containers(pod.init_containers),
        "containers": containers(pod.containers),
    }


def _given(said: Mapping[str, Any]) -> AdmittedContainer:
    reply = said.get("reply") or {}
    devices = {resource: tuple(ids) for resource, ids in (said.get("devices") or {}).items()}
    merged = ContainerReply(
        envs=reply.get("envs", {}),
        mounts=[MountSpec(**mount) for mount in reply.get("mounts", ())],
        devices=[DeviceSpec(**device) for device in reply.get("devices", ())],
        annotations=reply.get("annotations", {}),
        cdi_devices=reply.get("cdi_devices", ()),
    )
    # The kubelet merges the replies of several resources; which was whose cannot be told any more.
    return AdmittedContainer(
        devices=devices, replies=dict.fromkeys(devices, merged) if len(devices) == 1 else {}, reply=merged
    )
