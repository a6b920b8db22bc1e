"""`Case` and `PluginScene`: what a check of a device plugin plays with.

A `Case` is given to a check: what is known of the plugin, how patient to be, and `Case.connected`, which makes a
`PluginScene`: a fresh kubelet in a directory of its own and a fresh plugin that it knows.

Two kinds of seconds: `Case.limit` is a verdict, ten times what the contract's rule names, because a loaded machine is
no fault of the plugin; `Case.span` is a time that the scenario itself names ("60 s later").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
from typing_extensions import override

from ... import events
from ...faults import RegisterFault
from ...kubelet import SimulatedKubelet
from ...profiles import DEFAULT_PROFILE
from ...protocol.pods import ScenarioError
from ...protocol.wire import ListedDevice, PluginConnection, PluginOptions, decode_devices
from ..checks import NotApplicable, Route
from ..scene import Scene, limit_of
from .subject import Staging, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from anyio.abc import TaskGroup

    from ..instance import Instance

MakeKubelet = Callable[..., AbstractAsyncContextManager[SimulatedKubelet]]
"""Makes a kubelet, which lives while its context lasts, with arguments of `SimulatedKubelet`.

It need not be a simulated one: kdp's own tests give the checks the kubelet's device manager itself.
"""


def simulated(root: Path | None, **options: Any) -> SimulatedKubelet:
    """Make a simulated kubelet, whose plugin watcher looks twenty times as often as a real one."""
    return SimulatedKubelet(root, seed=1, watcher_period=0.05, **options)


@attrs.frozen(kw_only=True)
class PluginFacts:
    """What the first meeting with the plugin has shown.

    Attributes:
        resource: The resource that the checks use: the one with the most healthy devices.
        resources: All its resources.
        healthy: The ids of that resource's healthy devices, sorted.
        devices: The number of its devices.
        options: What GetDevicePluginOptions said.
        route: How it registers.
    """

    resource: str
    resources: tuple[str, ...]
    healthy: tuple[str, ...]
    devices: int
    options: PluginOptions
    route: Route


def _require_devices(count: int, healthy: Sequence[str], resource: str) -> None:
    if len(healthy) < count:
        needed = "devices are" if count > 1 else "device is"
        raise NotApplicable(f"{count} healthy {needed} needed, {resource} lists {len(healthy)}")


class PluginScene(Scene):
    """One kubelet with the plugin on it, and what a check asks about them."""

    noun = "plugin"

    def __init__(self, case: Case, kubelet: SimulatedKubelet, tasks: TaskGroup) -> None:
        super().__init__(tasks, patience=case.patience)
        self.case = case
        self.kubelet = kubelet
        self.resource = case.facts.resource

    @property
    @override
    def log(self) -> events.EventLog:
        """What the kubelet has seen."""
        return self.kubelet.events

    def refuse(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Answer the next Register calls for the resource with this error; other resources are unaffected."""
        self.kubelet.faults.register(RegisterFault(code=code, text=text, resource=self.resource), times=times)

    async def start(self, staging: Staging | None = None) -> Instance:
        """Start one more instance; it need not be registered yet."""
        subject, paths = self.case.subject, self.kubelet.paths
        return await self.hold(subject.start(paths, staging or Staging(), self.log.touch))

    # Waiting -------------------------------------------------------------------------------------------------------

    async def connected(self, resource: str | None = None, *, streams: int = 1, lists: int = 0) -> float:
        """Wait until so many streams of a resource are open and more than ``lists`` lists have come."""
        name = resource or self.resource

        def holds() -> bool:
            came = len(self.kubelet.events.of(events.ListReceived, resource=name))
            return self.kubelet.is_running and self.kubelet.streams(name) >= streams and came > lists

        return await self.until(holds, self.case.patience_for_connecting, f"no device list of {name} came")

    async def filled(self) -> None:
        """Wait until a healthy device is listed, if one was when the plugin was met: its first list may be empty."""
        if self.case.facts.healthy:
            seconds = self.case.patience_for_connecting
            await self.until(lambda: self.healthy, seconds, f"no healthy device of {self.resource} was listed")

    async def quiet(self, seconds: float, *kinds: type[events.Event], resource: str | None = None) -> None:
        """Watch for the time that the scenario names, and fail at the first event of these kinds."""
        before = {kind: len(self.kubelet.events.of(kind, resource=resource)) for kind in kinds}

        def unwanted() -> dict[str, int]:
            now = {kind: len(self.kubelet.events.of(kind, resource=resource)) for kind in kinds}
            return {kind.__name__: now[kind] - before[kind] for kind in kinds if now[kind] > before[kind]}

        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not unwanted():
            self.check_alive()
            with anyio.move_on_after(min(left, 0.05)):
                await self.kubelet.events.change()
        if found := unwanted():
            unwanted_events = " and ".join(f"{count} {name}" for name, count in found.items())
            raise self.failed(f"{unwanted_events} although nothing had happened that calls for it")

    # Looking -------------------------------------------------------------------------------------------------------

    @property
    def registers(self) -> list[events.RegisterReceived]:
        """The Register calls for the resource."""
        return self.kubelet.events.of(events.RegisterReceived, resource=self.resource)

    @property
    def lists(self) -> list[events.ListReceived]:
        """The device lists of the resource."""
        return self.kubelet.events.of(events.ListReceived, resource=self.resource)

    @property
    def streams_opened(self) -> int:
        """How many streams of the resource were opened so far."""
        return len(self.kubelet.events.of(events.StreamOpened, resource=self.resource))

    @property
    def listed(self) -> dict[str, ListedDevice]:
        """The kubelet's device table of the resource."""
        return self.kubelet.devices(self.resource) if self.kubelet.is_running else {}

    @property
    def healthy(self) -> list[str]:
        """The ids of the healthy devices, sorted."""
        return sorted(device.id for device in self.listed.values() if device.health == "Healthy")

    def some(self, count: int) -> list[str]:
        """Return so many healthy devices.

        Raises:
            NotApplicable: There are not so many.
        """
        _require_devices(count, self.healthy, self.resource)
        return self.healthy[:count]

    def at_most(self, count: int) -> list[str]:
        """Return the healthy devices, but no more than so many.

        Raises:
            NotApplicable: There is none.
        """
        return self.some(max(1, min(count, len(self.healthy))))

    def health_of(self, device: str) -> str | None:
        """Return the health text of a listed device; None: it is not listed."""
        held = self.listed.get(device)
        return None if held is None else held.health

    async def until_not_healthy(self, device: str, otherwise: str) -> float:
        """Wait until a device is not listed Healthy any more, and return the seconds that it took."""
        return await self.until(lambda: self.health_of(device) != "Healthy", self.case.limit(1.0), otherwise)

    async def until_listed(self, device: str, health: str, otherwise: str) -> float:
        """Wait until a device is listed with this health, and return the seconds that it took."""
        return await self.until(lambda: self.health_of(device) == health, self.case.limit(1.0), otherwise)

    @property
    def client(self) -> PluginConnection:
        """The kubelet's connection to the plugin."""
        try:
            return self.kubelet.plugin(self.resource)
        except ScenarioError:
            raise self.failed(f"the kubelet no longer has a connection to {self.resource}") from None

    def sockets(self) -> set[str]:
        """Return the plugins' sockets, by name, in the directory of the plugin's route."""
        directory = self.kubelet.paths.device_plugin_dir
        if self.case.facts.route == "watcher":
            directory = self.kubelet.paths.plugins_registry_dir
        found: set[str] = set()
        with suppress(FileNotFoundError):
            found = {path.name for path in directory.rglob("*") if path.is_socket() and path.name != "kubelet.sock"}
        return found

    def socket_path(self, endpoint: str) -> Path:
        """Return where a registered endpoint lies."""
        return self.kubelet.paths.device_plugin_dir / endpoint

    def decode(self, event: events.ListReceived) -> list[ListedDevice]:
        """Return the devices of a list as it came."""
        return decode_devices(event.payload)


@attrs.frozen(kw_only=True)
class Case:
    """What a check is given.

    Attributes:
        subject: The plugin under test.
        facts: What the first meeting has shown.
        profile: Which kubelet.
        patience: Factor on all verdicts' limits; the tests of the kit itself use less than 1.
        scale: Factor on the times that scenarios name; the same.
        cdi_dirs: Where CDI specs lie.
        kubelet: Makes the kubelets.
    """

    subject: Subject
    facts: PluginFacts
    profile: str = DEFAULT_PROFILE
    patience: float = 1.0
    scale: float = 1.0
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    kubelet: MakeKubelet = simulated

    def limit(self, target: float) -> float:
        """Return the seconds after which a rule counts as broken that names ``target`` seconds."""
        return limit_of(target, self.patience)

    def span(self, seconds: float) -> float:
        """Return a time that the scenario names."""
        return seconds * self.scale

    @property
    def patience_for_connecting(self) -> float:
        """Seconds to wait until a plugin that was started or lost is connected."""
        return 30.0 * max(self.patience, 0.1)

    def require_devices(self, count: int = 2) -> None:
        """Refuse at once if the plugin has not so many healthy devices."""
        _require_devices(count, self.facts.healthy, self.facts.resource)

    @asynccontextmanager
    async def node(
        self,
        *,
        autostart: bool = True,
        profile: str | None = None,
        listener: Callable[[events.Event], None] | None = None,
        root: Path | None = None,
    ) -> AsyncGenerator[PluginScene]:
        """Make a kubelet, without a plugin."""
        async with (
            self.kubelet(
                root,
                profile=profile or self.profile,
                autostart=autostart,
                listener=listener,
                seen_at=self.subject.seen_at,
            ) as kubelet,
            anyio.create_task_group() as tasks,
        ):
            try:
                yield PluginScene(self, kubelet, tasks)
            finally:
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def connected(
        self, staging: Staging | None = None, *, profile: str | None = None
    ) -> AsyncGenerator[PluginScene]:
        """Make a kubelet and a plugin that it knows, with every resource that the plugin had when it was met."""
        async with self.node(profile=profile) as scene:
            await scene.start(staging)
            for resource in self.facts.resources:
                await scene.connected(resource)
            await scene.filled()
            yield scene

    @asynccontextmanager
    async def with_device(self, staging: Staging | None = None) -> AsyncGenerator[tuple[PluginScene, str]]:
        """Make a kubelet and a plugin as `connected` does, and choose a healthy device.

        Raises:
            NotApplicable: There is none.
        """
        async with self.connected(staging) as scene:
            [device] = scene.some(1)
            yield scene, device
