"""One life of a kubelet: from reading the checkpoint to the end of its process.

Everything here dies with a crash; what survives one (directories, pods, faults, the log) is `SimulatedKubelet`'s.
The order of a start is the kubelet's (contract section 4.2): checkpoint, directory, wiping, bind, listen, then
the plugin watcher. The decisions are in `manager`, `client` and `watcher`; this module only carries them out.

Rule: a connection is closed only where the kubelet closes it. Those that it leaks (section 2.5) stay open until
the end of its life, as they do in the real one.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from .. import events
from ..armed_faults import ArmedFaults, RegisterFault
from ..protocol import validation
from ..protocol.listener import Listener
from ..protocol.registry import Refusal, RegistryServer, joined_path
from ..protocol.wire import CallError, DialError, PluginConnection, PluginOptions, PluginStream, decode_devices, settle
from ..watcher import PluginHandler, PluginWatcher
from .assignments import AlreadyConnected, Endpoint
from .checkpoint import CHECKPOINT_NAME, Checkpoint
from .client import Client, ClientTable, register_text
from .nodeapi import PodResources, PodsApi

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Generator, Iterable
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from kdp.kubelet.paths import KubeletPaths

    from ..events import Event, EventLog
    from ..profiles import Profile
    from ..protocol.pods import ContainerReply, Pod
    from .manager import DeviceManager


class KubeletProcess:
    """One process of the kubelet. `run` is its whole life; cancelling it is its end.

    Args:
        paths: The node's directories.
        profile: Which kubelet it is.
        log: Where everything is written down.
        faults: What goes wrong.
        manager: A fresh device manager.
        pods: The active pods that this kubelet has heard of since its start, with their phases.
        rng: Decides what a race decides in the real one.
        dial_timeout: Seconds to connect to a plugin.
        watcher_period: Seconds between two looks of the plugin watcher's reconciler; the kubelet's is 1.
    """

    def __init__(
        self,
        *,
        paths: KubeletPaths,
        profile: Profile,
        log: EventLog,
        faults: ArmedFaults,
        manager: DeviceManager,
        pods: Callable[[], Iterable[tuple[Pod, str]]],
        rng: random.Random,
        dial_timeout: float,
        watcher_period: float,
        seen_at: str = "",
    ) -> None:
        self.manager = manager
        self.clients = ClientTable(one_per_resource=profile.one_client_per_resource)
        self.streams: list[Client] = []
        self.registered: set[str] = set()
        self._paths = paths
        self._profile = profile
        self._log = log
        self._faults = faults
        self._dial_timeout = dial_timeout
        self._by_endpoint: dict[Endpoint, Client] = {}
        self._connections: dict[PluginConnection, None] = {}
        self._watcher = PluginWatcher(
            directory=paths.plugins_registry_dir,
            retries=profile.watcher_retries,
            period=watcher_period,
            handlers={
                validation.DEVICE_PLUGIN_TYPE: PluginHandler(
                    validate=lambda info, _: validation.validation_error(info.name, info.versions),
                    register=lambda info, endpoint: self._register_watched(info.name, endpoint),
                    deregister=self._deregister,
                )
            },
            rng=rng,
            log=log,
            faults=faults,
            translate=partial(_seen_from_here, seen_at, paths.plugins_registry_dir.parent),
        )
        self._apis = [
            PodResources(
                manager=manager,
                pods=lambda: [pod for pod, _ in pods()],
                has_get=profile.pod_resources_has_get,
                log=log,
                rng=rng,
                faults=faults,
            ).server(paths.pod_resources_socket)
        ]
        self.pods_api = PodsApi(pods, lambda: manager.sources_ready)
        if profile.serves_pods_api:
            self._apis.append(self.pods_api.server(paths.pods_api_socket))
        self._inner = f"kdp-simulated-kubelet-{os.getpid()}-{secrets.token_hex(8)}"
        self._listeners: list[Listener] = []
        self._tasks: TaskGroup | None = None
        self._is_over = False

    # Start and end -------------------------------------------------------------------------------------------------

    async def run(
        self, listen_delay: float = 0.0, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Start, report started when kubelet.sock is listened on, and live until cancelled.

        Args:
            listen_delay: Seconds between bind(2) and listen(2) of kubelet.sock.
            task_status: Told when the kubelet is up.

        Raises:
            OSError: kubelet.sock cannot be bound.
        """
        directory = self._paths.device_plugin_dir
        checkpoint = Checkpoint.load(directory)
        if checkpoint is not None:
            self.manager.restore(checkpoint.registered, checkpoint.assignments)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        # The server behind the listener is ready before the listener is there: all that listen(2) has to wait for is
        # us.
        registry = RegistryServer(self._inner, self._register)
        try:
            await registry.start()
            for api in self._apis:
                await api.start()
            self._wipe(directory)
            listener = Listener(self._paths.kubelet_socket, self._inner)
            self._listeners.append(listener)
            if listen_delay > 0:
                await anyio.sleep(listen_delay)
            listener.listen()
            self._log.add(events.KubeletStarted(profile=self._profile.name))
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for api in self._apis:
                    tasks.start_soon(api.serve)
                await tasks.start(listener.serve)
                await tasks.start(self._watcher.run)
                task_status.started()
                await anyio.sleep_forever()
        finally:
            for listener in self._listeners:
                listener.close()
            with anyio.CancelScope(shield=True):
                for connection in self._connections:
                    await connection.drop()
                for api in self._apis:
                    await api.close()
                await registry.stop()
                await settle()

    def _wipe(self, directory: Path) -> None:
        """Delete what this kubelet deletes at its start (contract section 4.3)."""
        for path in directory.iterdir():
            if path.name == CHECKPOINT_NAME:
                continue
            # A link counts as what it points at; a link to nothing cannot be looked at and is left alone.
            if path.is_socket() or (self._profile.wipes_everything and path.exists() and not path.is_dir()):
                path.unlink(missing_ok=True)

    def crash(self) -> None:
        """Break everything at once and abruptly, as SIGKILL does; `run` must still be cancelled."""
        self._is_over = True
        for listener in self._listeners:
            listener.slam()
        for api in self._apis:
            api.slam()
        for connection in self._connections:
            connection.sever()

    def unlink_socket(self) -> None:
        """Remove kubelet.sock, as the orderly end of the device manager does."""
        for listener in self._listeners:
            listener.unlink()

    # Registration over kubelet.sock --------------------------------------------------------------------------------

    async def _register(self, version: str, endpoint: str, resource: str, options: PluginOptions) -> None:
        received = events.RegisterReceived(
            resource=resource,
            endpoint=endpoint,
            version=version,
            pre_start_required=options.pre_start_required,
            preferred_allocation_available=options.preferred_allocation_available,
        )
        answered = partial(events.RegisterAnswered, resource=resource, endpoint=endpoint)
        with self._logged(received, answered):
            try:
                await self._answer(version, endpoint, resource)
            except BaseException:
                self.registered.discard(resource)
                raise
            self.registered.add(resource)

    async def _answer(self, version: str, endpoint: str, resource: str) -> None:
        fault = self._faults.next_register(resource)
        if fault.hang:
            await anyio.sleep_forever()
        if fault.drop:
            for listener in self._listeners:
                listener.drop_connections()
            await anyio.sleep_forever()
        # Joined and tidied, not validated (contract section 2.2).
        socket_path = joined_path(self._paths.device_plugin_dir, endpoint)
        if fault.code is not None:
            raise Refusal(fault.text.replace("{socket}", socket_path), fault.code)
        refused = validation.version_error(version) or validation.resource_name_error(resource)
        if refused is not None:
            raise Refusal(refused)
        on_record = [c for c in self.clients.all() if (c.resource, c.socket_path) == (resource, socket_path)]
        if fault.dial and not (self._faults.deduplicates and on_record):
            for _ in range(fault.connections):
                await self._connect_for(resource, socket_path, fault)
        if fault.delay > 0:
            await anyio.sleep(fault.delay)

    async def _connect_for(self, resource: str, socket_path: str, fault: RegisterFault) -> Client:
        """Connect in a task of the kubelet's own, which the end of the Register call stops or not (section 2.1)."""
        done = anyio.Event()
        scope = anyio.CancelScope()
        failure: list[Refusal] = []
        connected: list[Client] = []

        async def connect() -> None:
            with scope:
                try:
                    connected.append(await self._connect(resource, socket_path, fault))
                except (DialError, CallError, AlreadyConnected) as error:
                    failure.append(Refusal(register_text(error)))
            done.set()

        self._running_tasks.start_soon(connect)
        try:
            await done.wait()
        except BaseException:
            if self._profile.register_governs_connecting:
                scope.cancel()
            raise
        if failure:
            raise failure[0]
        return connected[0]

    async def _connect(self, resource: str, socket_path: str, fault: RegisterFault) -> Client:
        """Dial, ask for the options, install the endpoint, and open the stream in a task (contract section 2.1)."""
        client = Client(resource, self._faults.connection(socket_path))
        self._connections[client.connection] = None
        self.clients.add(client)
        try:
            if fault.dial_delay > 0:
                await anyio.sleep(fault.dial_delay)
            try:
                await client.connection.dial(self._dial_timeout)
            except DialError as error:
                self._log.add(events.DialFailed(resource=resource, socket_path=socket_path, error=str(error)))
                raise
            self._log.add(events.Dialed(resource=resource, socket_path=socket_path))
            if fault.options:
                options = client.endpoint.options = await client.connection.options()
                self._log.add(
                    events.OptionsReceived(
                        resource=resource,
                        socket_path=socket_path,
                        pre_start_required=options.pre_start_required,
                        preferred_allocation_available=options.preferred_allocation_available,
                    )
                )
            self.manager.connected(client.endpoint)
        except BaseException:
            self.clients.drop(resource, socket_path)
            # Once dialed the connection is leaked (section 2.5): nobody closes it while this kubelet lives.
            if not client.connection.is_dialed:
                with anyio.CancelScope(shield=True):
                    await self._close(client.connection)
            raise
        self._by_endpoint[client.endpoint] = client
        if fault.stream:
            self._running_tasks.start_soon(self._watch, client)
        return client

    # The device lists ----------------------------------------------------------------------------------------------

    async def _watch(self, client: Client) -> None:
        """Read one ListAndWatch to its end, then close whichever client is on record for it."""
        try:
            code, detail = await self._read_lists(client, client.connection.watch())
        except CallError as closed:
            code, detail = closed.code, closed.detail
        self._log.add(
            events.StreamEnded(resource=client.resource, socket_path=client.socket_path, code=code, detail=detail)
        )
        if self._faults.disconnect_delay > 0:
            await anyio.sleep(self._faults.disconnect_delay)
        on_record = self.clients.find(client.resource, client.socket_path)
        if on_record is not None:
            await self._disconnect(on_record)

    async def _read_lists(self, client: Client, stream: PluginStream) -> tuple[str, str]:
        client.stream = stream
        self.streams.append(client)
        self._log.add(events.StreamOpened(resource=client.resource, socket_path=client.socket_path))
        try:
            while True:
                await client.may_read.wait()
                message = await stream.read()
                if message is None:
                    return stream.ending
                self._receive(client, *message)
        finally:
            self.streams.remove(client)
            stream.cancel()

    def _receive(self, client: Client, received: float, payload: bytes) -> None:
        devices = decode_devices(payload)
        healthy = [device.health for device in devices].count(validation.HEALTHY)
        concerned = self.manager.listed(client.resource, devices)
        client.lists += 1
        self.save()
        self._log.add(
            events.ListReceived(
                time=received,
                resource=client.resource,
                socket_path=client.socket_path,
                healthy=healthy,
                unhealthy=len(devices) - healthy,
                size_bytes=len(payload),
                payload=payload,
            )
        )
        if concerned and self._profile.tells_device_health:
            self._log.add(events.PodsConcerned(resource=client.resource, uids=tuple(sorted(concerned))))

    async def _disconnect(self, client: Client) -> None:
        self.clients.drop(client.resource, client.socket_path)
        client.end_stream()
        # A client that is still being dialed has nothing to close: its registration goes on without its record.
        if client.connection.is_dialed and not client.is_leaked:
            await self._close(client.connection)
        self.manager.disconnected(client.resource, client.socket_path)
        self._log.add(events.Disconnected(resource=client.resource, socket_path=client.socket_path))

    async def disconnect_all(self) -> None:
        """Close every client on record, as the device manager does when it is told to stop."""
        for client in self.clients.all():
            await self._disconnect(client)

    async def _close(self, connection: PluginConnection) -> None:
        self._connections.pop(connection, None)
        await connection.close()

    def save(self) -> None:
        """Write the checkpoint; a directory that cannot be written is logged by the kubelet, and borne.

        After the end of this life nothing is written any more.
        """
        if self._is_over:
            return
        checkpoint = Checkpoint(
            registered={resource: tuple(ids) for resource, ids in self.manager.healthy.items()},
            assignments=self.manager.assignments,
        )
        with suppress(OSError):
            checkpoint.save(self._paths.device_plugin_dir)

    # The plugin watcher's way in -----------------------------------------------------------------------------------

    async def _register_watched(self, resource: str, socket_path: str) -> Callable[[], None]:
        """Connect without a Register call's deadline, and return what opens the stream; raises `Refusal`."""
        client = await self._connect_for(resource, socket_path, RegisterFault(stream=False))

        def open_stream() -> None:
            self._running_tasks.start_soon(self._watch, client)

        return open_stream

    async def _deregister(self, resource: str, socket_path: str) -> None:
        client = self.clients.find(resource, socket_path)
        if client is not None:
            await self._disconnect(client)

    # Calls for the device manager ----------------------------------------------------------------------------------

    def client_of(self, resource: str) -> Client | None:
        """Return the client that allocations of this resource go to."""
        endpoint = self.manager.endpoints.get(resource)
        return None if endpoint is None else self._by_endpoint.get(endpoint)

    async def preferred(
        self, endpoint: Endpoint, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Call GetPreferredAllocation and write it down; only the first container's answer is read."""
        requested = events.PreferredRequested(
            resource=endpoint.resource, available=tuple(available), must_include=tuple(must_include), size=size
        )
        answered = partial(events.PreferredAnswered, resource=endpoint.resource)
        with self._logged(requested, answered) as answer:
            answer["device_ids"] = ()
            containers = await self._connection(endpoint).preferred(available, must_include, size)
            first = answer["device_ids"] = containers[0] if containers else ()
        return first

    async def allocate(self, endpoint: Endpoint, device_ids: Collection[str]) -> list[ContainerReply]:
        """Call Allocate and write it down."""
        ids = tuple(device_ids)
        requested = events.AllocateRequested(resource=endpoint.resource, device_ids=ids)
        answered = partial(events.AllocateAnswered, resource=endpoint.resource, device_ids=ids)
        with self._logged(requested, answered):
            return await self._connection(endpoint).allocate(ids)

    async def pre_start(self, endpoint: Endpoint, device_ids: Collection[str]) -> None:
        """Call PreStartContainer and write it down."""
        ids = tuple(device_ids)
        requested = events.PreStartRequested(resource=endpoint.resource, device_ids=ids)
        answered = partial(events.PreStartAnswered, resource=endpoint.resource, device_ids=ids)
        with self._logged(requested, answered):
            await self._connection(endpoint).pre_start(ids)

    @contextmanager
    def _logged(self, requested: Event, answered: Callable[..., Event]) -> Generator[dict[str, tuple[str, ...]]]:
        """Write down a call, and how it ended when the context is left.

        Args:
            requested: The call.
            answered: Makes the event of its end.

        Yields:
            What else the event of the end has to say.
        """
        self._log.add(requested)
        error: str | None = "the call ended before its answer"
        answer: dict[str, tuple[str, ...]] = {}
        try:
            yield answer
            error = None
        except (CallError, Refusal) as failed:
            error = str(failed)
            raise
        finally:
            now = time.monotonic()
            self._log.add(answered(time=now, error=error, seconds=now - requested.time, **answer))

    def _connection(self, endpoint: Endpoint) -> PluginConnection:
        return self._by_endpoint[endpoint].connection

    @property
    def _running_tasks(self) -> TaskGroup:
        if self._tasks is None:
            raise RuntimeError("this kubelet has not started")
        return self._tasks


def _seen_from_here(seen_at: str, root: Path, path: str) -> str:
    """Return a path below the root as plugins see it as a path below the root."""
    if seen_at and path.startswith(f"{seen_at}/"):
        return os.fspath(root) + path.removeprefix(seen_at)
    return path
