"""`SimulatedKubelet`: a kubelet's device-plugin side, for tests, without a cluster and without root.

Real gRPC over real unix sockets in a temporary directory, and behind them a model of the kubelet's device manager,
plugin watcher and pod admission: it refuses what the kubelet refuses, in its words, and remembers what it
remembers. It is no recorder of calls: a test that passes here says something about a node. Where versions differ
a profile decides (`kdp.testing.PROFILES`).

Here are its public face and what outlives its process: the directories, the log, the faults, and in `workload` the
pods and the node object. What dies with its process is `life.Life`.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.kubelet.paths import KubeletPaths

from . import events
from .events import Event, EventLog
from .faults import Faults
from .kubelet_process import Client, Life
from .manager import DeviceManager
from .pods import AdmissionError, AdmittedContainer, AdmittedPod, KubeletPanic, Pod, ScenarioError
from .profiles import DEFAULT_PROFILE, Profile, profile_named
from .topology import Topology
from .validation import DIAL_TIMEOUT, MAX_SOCKET_PATH_BYTES
from .workload import NodeStatus, Workload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Self

    from anyio.abc import TaskGroup, TaskStatus

    from .wire import ListedDevice, PluginConnection

__all__ = ["NotReached", "SimulatedKubelet"]


class NotReached(TimeoutError):
    """A condition that a test waited for did not come true; the text has everything that happened instead."""


class SimulatedKubelet(AsyncContextManagerMixin):
    """A kubelet to test device plugins with.

    Used as an async context manager; it is started on entry and crashes on exit. Everything must be called from
    the event loop that entered it; nothing blocks it for long. asyncio only, because gRPC is.

    What cannot happen on a node it refuses with `ScenarioError` and the reason, instead of playing it: a pod that the
    API server would not take (names, limits, no or equally named containers, a restartable main container), a pod
    that is admitted twice by one life of the kubelet or beside its namesake, a main container that starts before its
    init containers, containers of a pod that the kubelet has not heard of since its start, pods readmitted without
    a restart, a NUMA policy on a machine where no kubelet starts with it, a path too long for a socket, negative
    times, and everything that is asked of a kubelet or a plugin that is not there.

    Args:
        root: The kubelet's root directory; a temporary one, removed at the end, if it is not given.
        paths: The directories one by one, instead of a root.
        profile: Which kubelet: ``k134``, ``k136``, ``k137`` or a `Profile`.
        seed: Makes the choices reproducible that the kubelet takes at random (order of ids, fill and trim).
        clock: For the five-minute grace period, in seconds; replaced to let minutes pass at once.
        dial_timeout: Seconds to connect to a plugin; the kubelet's own is 10.
        watcher_period: Seconds between two looks of the plugin watcher; the kubelet's own is 1.
        topology_policy: ``none``, ``best-effort``, ``restricted`` or ``single-numa-node`` (contract section 8).
        topology_scope: What is aligned together: ``container`` or ``pod``.
        numa_nodes: NUMA nodes of the machine.
        autostart: Whether the kubelet runs when the context is entered.
        listener: Called with each event at once, in the event loop; must not block.
        seen_at: Where plugins in a mount namespace of their own see the root directory: the plugin watcher's plugins
            tell absolute paths.

    Attributes:
        events: What happened, in order (`EventLog`).
        faults: How it misbehaves on command (`Faults`).
        paths: Its directories.
        profile: Which kubelet it is.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        paths: KubeletPaths | None = None,
        profile: str | Profile = DEFAULT_PROFILE,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        dial_timeout: float = DIAL_TIMEOUT,
        watcher_period: float = 1.0,
        topology_policy: str = "none",
        topology_scope: str = "container",
        numa_nodes: int = 2,
        autostart: bool = True,
        listener: Callable[[Event], None] | None = None,
        seen_at: str | os.PathLike[str] | None = None,
    ) -> None:
        if root is not None and paths is not None:
            raise ScenarioError("a root directory and single paths were given: one of them, not both")
        self._clean_up: Callable[[], object] | None = None
        if paths is None:
            if root is None:
                # Short, because a socket's whole path has 107 bytes. It goes with us, also if we are never entered.
                root = tempfile.mkdtemp(prefix="kdp-")
                self._clean_up = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
            paths = KubeletPaths.under(Path(root).absolute())
        length = len(os.fsencode(paths.kubelet_socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise ScenarioError(
                f"{paths.kubelet_socket} has {length} bytes; a socket's path can have {MAX_SOCKET_PATH_BYTES}: "
                f"choose a shorter root"
            )
        self.paths = paths
        self.profile = profile_named(profile)
        self.events = EventLog(listener)
        self.faults = Faults(self, lambda: self._life)
        self._clock = clock
        self._topology = Topology(topology_policy, topology_scope, numa_nodes)
        self._rng = random.Random(seed)  # noqa: S311 - for tests, reproducible
        self._dial_timeout = dial_timeout
        self._watcher_period = watcher_period
        self._seen_at = "" if seen_at is None else os.fspath(seen_at)
        self._autostart = autostart
        self._tasks: TaskGroup | None = None
        self._life: Life | None = None
        self._life_scope: anyio.CancelScope | None = None
        self._life_over = anyio.Event()
        self._workload = Workload(self.events, self._rng, lambda: self._life)

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            async with anyio.create_task_group() as self._tasks:
                try:
                    if self._autostart:
                        await self.start()
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        if self._life is not None:
                            await self._end("crashed")
                    self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.faults.release()
            if self._clean_up is not None:
                self._clean_up()

    # Life cycle ----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the kubelet's process is there."""
        return self._life is not None

    async def start(self, *, listen_delay: float = 0.0, profile: str | Profile | None = None) -> None:
        """Start the kubelet: read the checkpoint, wipe the directory, bind, listen, start the plugin watcher.

        Pods that were bound before are not admitted again by it: see `readmit`.

        Args:
            listen_delay: Seconds between bind(2) and listen(2); in between connecting is refused.
            profile: Another version than before: an upgrade or a downgrade of the node.

        Raises:
            ScenarioError: It runs already, or the context is not entered.
            OSError: kubelet.sock cannot be bound.
        """
        if self._life is not None:
            raise ScenarioError("the kubelet is running already; restart it, or stop it first")
        if listen_delay < 0:
            raise ScenarioError(
                f"a kubelet cannot listen {listen_delay:g} s after it has bound: seconds are not negative"
            )
        tasks = self._entered()
        if profile is not None:
            self.profile = profile_named(profile)
        self._workload.kubelet_starts(self.paths.device_plugin_dir)
        version = self.profile
        manager = DeviceManager(
            one_endpoint_per_resource=self.profile.one_client_per_resource,
            clock=self._clock,
            rng=self._rng,
            active_pods=self._workload.pods,
            is_running=lambda pod, container: self._workload.was_running(pod, container, version),
            topology=self._topology,
            hints_over_every_node=version.hints_over_every_node,
            health_by_id_alone=version.one_client_per_resource,
        )
        manager.sources_ready = self._workload.sources_ready
        self._life = Life(
            paths=self.paths,
            profile=self.profile,
            log=self.events,
            faults=self.faults,
            manager=manager,
            pods=self._workload.heard_of,
            rng=self._rng,
            dial_timeout=self._dial_timeout,
            watcher_period=self._watcher_period,
            seen_at=self._seen_at,
        )
        scope = self._life_scope = anyio.CancelScope()
        self._life_over = anyio.Event()
        try:
            await tasks.start(self._live, self._life, listen_delay, scope, self._life_over)
        except BaseException:
            scope.cancel()
            self._life = None
            raise

    async def _live(
        self,
        life: Life,
        listen_delay: float,
        scope: anyio.CancelScope,
        over: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            with scope:
                await life.run(listen_delay, task_status=task_status)
        finally:
            over.set()

    async def stop(self) -> None:
        """Stop it in good order: connections are closed, kubelet.sock is removed.

        This is the device manager's own end. A kubelet's process that ends by SIGTERM leaves kubelet.sock behind as
        a dead file all the same (contract section 4.3): that is `crash`.

        Raises:
            ScenarioError: It does not run.
        """
        life = self._living("it cannot be stopped")
        await life.disconnect_all()
        life.unlink_socket()
        await self._end("stopped")

    async def crash(self) -> None:
        """Kill it: connections break without a word, kubelet.sock stays as a dead file.

        Raises:
            ScenarioError: It does not run.
        """
        self._living("it cannot crash")
        await self._end("crashed")

    async def _end(self, how: str) -> None:
        life, self._life = self._life, None
        if life is not None and how != "stopped":
            life.crash()
        if self._life_scope is not None:
            self._life_scope.cancel()
        self.events.add(events.KubeletStopped(how=how))
        await self._life_over.wait()

    async def restart(
        self,
        *,
        down: float = 0.0,
        listen_delay: float = 0.0,
        reboot: bool = False,
        profile: str | Profile | None = None,
    ) -> None:
        """Replace the kubelet's process by a new one, as ``systemctl restart kubelet`` does.

        Connections break, the dead kubelet.sock stays while it is down, then the sockets are wiped and a new one
        is bound. The checkpoint, the pods and their running containers stay.

        Args:
            down: Seconds without a kubelet.
            listen_delay: Seconds between bind(2) and listen(2) of the new kubelet.sock.
            reboot: The node restarts: no container runs any more.
            profile: Another version than before.

        Raises:
            ScenarioError: It does not run.
        """
        if down < 0:
            raise ScenarioError(f"a kubelet cannot be down for {down:g} s: seconds are not negative")
        await self.crash()
        if reboot:
            self._workload.node_reboots()
        if down > 0:
            await anyio.sleep(down)
        await self.start(listen_delay=listen_delay, profile=profile)

    # What it believes ----------------------------------------------------------------------------------------------

    def capacity(self) -> dict[str, int]:
        """Return healthy plus unhealthy devices by resource, as the device manager reports them.

        Like the kubelet's own look, this is what forgets a resource whose plugin ended more than five minutes ago.

        Raises:
            ScenarioError: It does not run.
        """
        return self._look()[0]

    def allocatable(self) -> dict[str, int]:
        """Return the healthy devices by resource; with the same side effect as `capacity`.

        Raises:
            ScenarioError: It does not run.
        """
        return self._look()[1]

    def _look(self) -> tuple[dict[str, int], dict[str, int]]:
        return self._workload.look(self._living("nobody counts its devices"))

    def node_status(self) -> NodeStatus:
        """Return what the node object shows after a status update now; while the kubelet is down: the last one.

        The kubelet overwrites what it knows and zeroes what it forgets; of a resource that it never heard of, the
        old numbers stay (contract sections 4.5 and 4.6).
        """
        if self.is_running:
            self._look()
        return self._workload.status()

    def devices(self, resource: str) -> dict[str, ListedDevice]:
        """Return the last list of this resource by device id, as it came; empty if none came.

        Raises:
            ScenarioError: It does not run.
        """
        return dict(self._living("it knows no devices").manager.devices.get(resource, {}))

    def in_use(self, resource: str) -> set[str]:
        """Return the device ids that count as in use, after freeing those of finished pods.

        Raises:
            ScenarioError: It does not run.
        """
        manager = self._living("it knows no devices").manager
        manager.release_finished()
        return manager.booked(resource)

    def topology_hints(self, pod: Pod) -> dict[str, dict[str, list[tuple[tuple[int, ...], bool]]]]:
        """Return the NUMA hints of a pod's containers now, as the topology manager would get them at its admission.

        Returns:
            Container -> resource -> sets of NUMA nodes that could serve it, in order, each with whether it is
            preferred. A resource without a preference, or that no nodes can serve, is left out.

        Raises:
            ScenarioError: It does not run.
        """
        manager = self._living("it has no hints").manager
        found = {container.name: manager.topology_hints(pod, container) for container in pod.in_order}
        return {
            container: {
                resource: sorted((hint.nodes or (), hint.preferred) for hint in hints)
                for resource, hints in resources.items()
                if hints
            }
            for container, resources in found.items()
        }

    def allocated_resources_status(self, pod: Pod | str) -> dict[str, dict[str, dict[str, str]]]:
        """Return the health of a pod's devices as its status would show it now (contract section 9).

        Args:
            pod: The pod or its uid.

        Returns:
            Main container -> resource -> device id -> ``Healthy`` or ``Unhealthy``. Nothing where the kubelet does
            not write this field (up to 1.35).

        Raises:
            ScenarioError: It does not run, or there is no such pod.
        """
        life = self._living("it writes no status")
        known = self._workload.find(pod)
        return life.manager.health(known) if self.profile.tells_device_health else {}

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams of this resource are open."""
        if self._life is None:
            return 0
        return sum(1 for client in self._life.streams if client.resource == resource)

    @property
    def sources_ready(self) -> bool:
        """Whether the kubelet has heard from the API server since it started (contract section 4.6)."""
        return self._workload.sources_ready

    async def until(
        self,
        condition: Callable[[], object] | None = None,
        *,
        capacity: Mapping[str, int] | None = None,
        allocatable: Mapping[str, int] | None = None,
        registered: str | None = None,
        streaming: str | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - a deadline for tests, with a story
    ) -> None:
        """Wait until everything that is asked for holds at the same time. Cancellable.

        The conditions are looked at again whenever something happened to the kubelet; nothing is polled, so a
        condition must be about the kubelet.

        Args:
            condition: Called without arguments; holds when it returns something true.
            capacity: These resources have exactly these capacities; others do not matter.
            allocatable: These resources have exactly this many allocatable devices; others do not matter.
            registered: The last Register of this resource was answered ok, in this life of the kubelet.
            streaming: A ListAndWatch of this resource is open and has brought a list, in this life.
            timeout: Seconds to wait.

        Raises:
            NotReached: It did not hold in time; the text tells what happened instead.
        """

        def holds() -> bool:
            if capacity is not None and not (self.is_running and _includes(self.capacity(), capacity)):
                return False
            if allocatable is not None and not (self.is_running and _includes(self.allocatable(), allocatable)):
                return False
            if registered is not None and not self._is_registered(registered):
                return False
            if streaming is not None and not self._is_streaming(streaming):
                return False
            return condition is None or bool(condition())

        try:
            with anyio.fail_after(timeout):
                while not holds():
                    await self.events.change()
        except TimeoutError:
            wanted = {
                "condition": getattr(condition, "__qualname__", None),
                "capacity": capacity,
                "allocatable": allocatable,
                "registered": registered,
                "streaming": streaming,
            }
            asked = ", ".join(f"{name}={value!r}" for name, value in wanted.items() if value is not None)
            state = f"capacity {self.capacity()}, allocatable {self.allocatable()}" if self.is_running else "down"
            raise NotReached(
                f"not reached in {timeout:g} s: {asked}; the kubelet ({self.profile.name}): {state}. What happened:\n"
                f"{self.events.story()}"
            ) from None

    def _is_registered(self, resource: str) -> bool:
        return self._life is not None and resource in self._life.registered

    def _is_streaming(self, resource: str) -> bool:
        streams = self._life.streams if self._life is not None else ()
        return any(client.resource == resource and client.lists for client in streams)

    # Pods ----------------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that are bound to this node and have not failed, by uid."""
        return self._workload.pods()

    async def admit(self, pod: Pod, *, start: bool = True) -> AdmittedPod:
        """Admit a pod as the kubelet's sync loop does, one at a time, then start its containers.

        Devices are chosen and Allocate is called for each container, init containers first (contract section 6);
        then PreStartContainer before each start, where the plugin wants it (section 7). Ordinary init containers
        end at once. Devices that a pod holds already are used without any call (section 4.6).

        Args:
            pod: The pod. One that was admitted before can be admitted again once the kubelet has restarted.
            start: Whether its containers are started.

        Returns:
            What each container was given.

        Raises:
            AdmissionError: The kubelet refused it; it is gone from the node.
            ContainerStartError: It is admitted, but a container could not be started.
            KubeletPanic: The kubelet is gone: the plugin's list set off a fault of its own. Start it again.
            ScenarioError: The kubelet does not run, or has admitted this pod already.
        """
        life = self._living(f"pod {pod.name!r} cannot be admitted")
        async with self._panicking():
            return await self._workload.admit(life, pod, start=start)

    async def start_container(self, pod: Pod | str, container: str = "main") -> AdmittedContainer:
        """Start a container of an admitted pod (again): its process ended, or its first start failed.

        PreStartContainer is called where the plugin wants it; the devices and the reply are those from before.

        Args:
            pod: The pod or its uid.
            container: The container's name.

        Returns:
            What it holds, with the reply that the container runtime gets.

        Raises:
            ContainerStartError: The start failed; it can be tried again.
            ScenarioError: There is no such pod or container, or the kubelet does not run.
        """
        life = self._living(f"container {container!r} cannot be started")
        async with self._panicking():
            return await self._workload.start_container(life, pod, container)

    @asynccontextmanager
    async def _panicking(self) -> AsyncGenerator[None]:
        try:
            yield
        except KubeletPanic:
            await self._end("panicked")
            raise

    async def readmit(self) -> dict[str, AdmittedPod | AdmissionError]:
        """Admit all known pods again: the API server's first word after a restart (contract section 4.6).

        Those that `admit` has brought back already are left out.

        Returns:
            By uid: what the pod's containers hold, or why it failed; a failed pod is gone from the node.

        Raises:
            KubeletPanic: The kubelet is gone: the plugin's list set off a fault of its own. Start it again.
            ScenarioError: The kubelet does not run, or has not restarted.
        """
        life = self._living("pods cannot be admitted again")
        async with self._panicking():
            return await self._workload.readmit(life)

    async def delete(self, pod: Pod | str) -> None:
        """Remove a pod from the node. Its devices are freed at the kubelet's next look, without a call.

        Args:
            pod: The pod or its uid.

        Raises:
            ScenarioError: There is no such pod.
        """
        self._workload.forget(pod)

    # Talking to plugins directly -----------------------------------------------------------------------------------

    def plugin(self, resource: str) -> PluginConnection:
        """Return the live connection to the plugin that serves this resource now, for calls of the test's own.

        The kubelet's state does not change by such calls. The connection is the kubelet's: do not close it.

        Raises:
            ScenarioError: No plugin of this resource is connected.
        """
        return self._client(resource).connection

    def drop_stream(self, resource: str) -> None:
        """Fault 30: this resource's ListAndWatch is cancelled; the plugin's socket stays.

        On a node: any error of the stream. The kubelet then closes the connection, marks the devices unhealthy and
        never calls again (section 5).

        A good plugin registers again within a second, under a new name.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._streaming(resource):
            client.end_stream()

    def pause_reading(self, resource: str) -> None:
        """Fault 33: this resource's lists are not read any more; a list that is being read is still taken.

        On a node: the kubelet's disk is slow, for it writes its checkpoint before it reads on. What the plugin sends
        stays in the flow control's window (about 64 KiB) and then in the plugin.

        A good plugin keeps the newest list for such a stream and not all of them.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._streaming(resource):
            client.may_read = anyio.Event()

    def resume_reading(self, resource: str) -> None:
        """Read on after `pause_reading`.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._streaming(resource):
            client.may_read.set()

    def sever(self, resource: str) -> None:
        """Fault 32: the connection to this resource's plugin breaks without a word.

        On a node: the kubelet is killed.

        A good plugin takes it for the end of the stream, and registers again.

        Raises:
            ScenarioError: No plugin of this resource is connected.
        """
        self._client(resource).connection.sever()

    @asynccontextmanager
    async def checkpoint_noise(self, per_second: float = 100.0) -> AsyncGenerator[None]:
        """Fault 27: the checkpoint is written this often while the context lasts.

        On a node: after each list of any plugin (section 4.4).

        A good plugin looks only at names that concern it, and neither registers nor sends anything.

        Args:
            per_second: Writes a second, each a temporary file and a rename.
        """

        async def write() -> None:
            while True:
                if self._life is not None:
                    self._life.save()
                await anyio.sleep(1 / per_second)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    def _client(self, resource: str) -> Client:
        life = self._living(f"nobody is connected for {resource}")
        client = life.client_of(resource)
        if client is None:
            raise ScenarioError(f"no plugin is connected for {resource}")
        return client

    def _streaming(self, resource: str) -> list[Client]:
        life = self._living(f"there is no stream of {resource}")
        streaming = [client for client in life.streams if client.resource == resource]
        if not streaming:
            raise ScenarioError(f"there is no open stream of {resource}")
        return streaming

    # Small helpers -------------------------------------------------------------------------------------------------

    def _living(self, consequence: str) -> Life:
        if self._life is None:
            raise ScenarioError(f"the kubelet is not running: {consequence}")
        return self._life

    def _entered(self) -> TaskGroup:
        if self._tasks is None:
            raise ScenarioError("the simulated kubelet is an async context manager: enter it before you start it")
        return self._tasks


def _includes(actual: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    return all(actual.get(resource) == count for resource, count in wanted.items())
