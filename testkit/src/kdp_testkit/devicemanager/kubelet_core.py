"""`KubeletCore`: what outlives a kubelet's process, its starts and ends, and what it believes; no pods, no faults.

`SimulatedKubelet` adds pods and faults. The faults drive this class, and what they arm is asked by the process: so the
process knows no faults, and the faults know no `SimulatedKubelet`.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from kdp.kubelet.paths import KubeletPaths

from .. import events
from ..armed_faults import ArmedFaults
from ..events import Event, EventLog
from ..lifetime import Lifetime, temporary_root, ungrouped
from ..patience import PATIENCE
from ..profiles import DEFAULT_PROFILE, Profile, profile_named
from ..protocol.pods import NotReached, ScenarioError
from ..protocol.validation import DIAL_TIMEOUT, MAX_SOCKET_PATH_BYTES
from .kubelet_process import KubeletProcess
from .manager import DeviceManager
from .topology import Topology
from .workload import NodeStatus, Workload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Self

    from anyio.abc import TaskGroup

    from ..protocol.wire import ListedDevice, PluginConnection
    from .client import Client


class CurrentProcess:
    """The process that the kubelet has now, if it runs."""

    def __init__(self) -> None:
        self.process: KubeletProcess | None = None

    def living(self, consequence: str) -> KubeletProcess:
        """Return it.

        Args:
            consequence: What cannot be while there is none.

        Raises:
            ScenarioError: There is none.
        """
        if self.process is None:
            raise ScenarioError(f"the kubelet is not running: {consequence}")
        return self.process

    def client(self, resource: str) -> Client:
        """Return the client that allocations of a resource go to.

        Raises:
            ScenarioError: No plugin of it is connected.
        """
        client = self.living(f"nobody is connected for {resource}").client_of(resource)
        if client is None:
            raise ScenarioError(f"no plugin is connected for {resource}")
        return client

    def streaming(self, resource: str) -> list[Client]:
        """Return the clients of a resource with an open stream, oldest first; at least one.

        Raises:
            ScenarioError: There is none.
        """
        process = self.living(f"there is no stream of {resource}")
        streaming = [client for client in process.streams if client.resource == resource]
        if not streaming:
            raise ScenarioError(f"there is no open stream of {resource}")
        return streaming


class KubeletCore(AsyncContextManagerMixin):
    """A simulated kubelet without pods and faults; the parameters are `SimulatedKubelet`'s.

    Attributes:
        events: What happened, in order (`EventLog`).
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
                root, self._clean_up = temporary_root(self)
            paths = KubeletPaths.simulated(Path(root).absolute())
        length = len(os.fsencode(paths.kubelet_socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise ScenarioError(
                f"{paths.kubelet_socket} has {length} bytes; a socket's path can have {MAX_SOCKET_PATH_BYTES}: "
                f"choose a shorter root"
            )
        self.paths = paths
        self.profile = profile_named(profile)
        self.events = EventLog(listener)
        self._armed = ArmedFaults()
        self._current = CurrentProcess()
        self._clock = clock
        self._topology = Topology(topology_policy, topology_scope, numa_nodes)
        self._rng = random.Random(seed)  # noqa: S311 - for tests, reproducible
        self._dial_timeout = dial_timeout
        self._watcher_period = watcher_period
        self._seen_at = "" if seen_at is None else os.fspath(seen_at)
        self._autostart = autostart
        self._tasks: TaskGroup | None = None
        self._life: Lifetime | None = None  # it needs an event loop, this constructor does not
        self._workload = Workload(self.events, self._rng, lambda: self._current.process)

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            with ungrouped():
                async with anyio.create_task_group() as self._tasks:
                    try:
                        if self._autostart:
                            await self.start()
                        yield self
                    finally:
                        with anyio.CancelScope(shield=True):
                            if self._current.process is not None:
                                await self._end("crashed")
                        self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self._release()
            if self._clean_up is not None:
                self._clean_up()

    # Life cycle ----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the kubelet's process is there."""
        return self._current.process is not None

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
        if self._current.process is not None:
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
            keeps_reservations=version.keeps_reservations,
        )
        manager.sources_ready = self._workload.sources_ready
        self._current.process = KubeletProcess(
            paths=self.paths,
            profile=self.profile,
            log=self.events,
            faults=self._armed,
            manager=manager,
            pods=self._workload.heard_of,
            rng=self._rng,
            dial_timeout=self._dial_timeout,
            watcher_period=self._watcher_period,
            seen_at=self._seen_at,
        )
        life = self._life = Lifetime()
        try:
            await tasks.start(life.run, self._current.process.run, listen_delay)
        except BaseException:
            life.end()
            self._current.process = None
            raise

    async def stop(self) -> None:
        """Stop it in good order: connections are closed, kubelet.sock is removed.

        This is the device manager's own end. A kubelet's process that ends by SIGTERM leaves kubelet.sock behind as
        a dead file all the same (contract section 4.3): that is `crash`.

        Raises:
            ScenarioError: It does not run.
        """
        process = self._current.living("it cannot be stopped")
        await process.disconnect_all()
        process.unlink_socket()
        await self._end("stopped")

    async def crash(self) -> None:
        """Kill it: connections break abruptly, kubelet.sock stays as a dead file.

        Raises:
            ScenarioError: It does not run.
        """
        self._current.living("it cannot crash")
        await self._end("crashed")

    async def _end(self, how: str) -> None:
        process, self._current.process = self._current.process, None
        if process is not None and how != "stopped":
            process.crash()
        if self._life is not None:
            self._life.end()
        self.events.add(events.KubeletStopped(how=how))
        if self._life is not None:
            await self._life.until_over()

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
        return self._workload.look(self._current.living("nobody counts its devices"))

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
        return dict(self._current.living("it knows no devices").manager.devices.get(resource, {}))

    def in_use(self, resource: str) -> set[str]:
        """Return the device ids that count as in use, after freeing those of finished pods.

        Raises:
            ScenarioError: It does not run.
        """
        manager = self._current.living("it knows no devices").manager
        manager.release_finished()
        return manager.booked(resource)

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams of this resource are open."""
        if self._current.process is None:
            return 0
        return sum(1 for client in self._current.process.streams if client.resource == resource)

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
        timeout: float = PATIENCE,  # noqa: ASYNC109 - a deadline for tests, with a story
    ) -> None:
        """Wait until everything that is asked for holds at the same time. Cancellable.

        The conditions are looked at again whenever something happened to the kubelet; nothing is polled, so a
        condition must be about the kubelet.

        Args:
            condition: Called without arguments; holds when it returns something true.
            capacity: These resources have exactly these capacities; others do not matter.
            allocatable: These resources have exactly this many allocatable devices; others do not matter.
            registered: The last Register of this resource was answered ok, in this process of the kubelet.
            streaming: A ListAndWatch of this resource is open and has brought a list, in this process.
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
        return self._current.process is not None and resource in self._current.process.registered

    def _is_streaming(self, resource: str) -> bool:
        streams = self._current.process.streams if self._current.process is not None else ()
        return any(client.resource == resource and client.lists for client in streams)

    # Talking to plugins directly -----------------------------------------------------------------------------------

    def plugin(self, resource: str) -> PluginConnection:
        """Return the live connection to the plugin that serves this resource now, for calls of the test's own.

        The kubelet's state does not change by such calls. The connection is the kubelet's: do not close it.

        Raises:
            ScenarioError: No plugin of this resource is connected.
        """
        return self._current.client(resource).connection

    def drop_stream(self, resource: str) -> None:
        """Fault 30: this resource's ListAndWatch is cancelled; the plugin's socket stays.

        On a node: any error of the stream. The kubelet then closes the connection, marks the devices unhealthy and
        never calls again (section 5).

        A good plugin registers again within a second, under a new name.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._current.streaming(resource):
            client.end_stream()

    def pause_reading(self, resource: str) -> None:
        """Fault 33: this resource's lists are not read any more; a list that is being read is still taken.

        On a node: the kubelet's disk is slow, for it writes its checkpoint before it reads on. What the plugin sends
        stays in the flow control's window (about 64 KiB) and then in the plugin.

        A good plugin keeps the newest list for such a stream and not all of them.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._current.streaming(resource):
            client.may_read = anyio.Event()

    def resume_reading(self, resource: str) -> None:
        """Read on after `pause_reading`.

        Raises:
            ScenarioError: There is no stream.
        """
        for client in self._current.streaming(resource):
            client.may_read.set()

    def sever(self, resource: str) -> None:
        """Fault 32: the connection to this resource's plugin breaks abruptly.

        On a node: the kubelet is killed.

        A good plugin takes it for the end of the stream, and registers again.

        Raises:
            ScenarioError: No plugin of this resource is connected.
        """
        self._current.client(resource).connection.sever()

    def _release(self) -> None:
        """Give back what is held when the context is left."""

    # Small helpers -------------------------------------------------------------------------------------------------

    def _entered(self) -> TaskGroup:
        if self._tasks is None:
            raise ScenarioError("the simulated kubelet is an async context manager: enter it before you start it")
        return self._tasks


def _includes(actual: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    return all(actual.get(resource) == count for resource, count in wanted.items())
