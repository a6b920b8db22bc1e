"""`Case` and `Scene`: what a check plays with.

A `Case` is given to a check: what is known of the plugin, how patient to be, and `Case.connected`, which makes a `Scene`:
a fresh kubelet in a directory of its own and a fresh plugin that it knows. Everything that a check waits for is waited for
here, with a deadline, and ends at once when the plugin ends although nobody asked it to.

Two kinds of seconds: `Case.limit` is a verdict, ten times what the contract's rule names, because a loaded machine is
no fault of the plugin; `Case.span` is a time that the scenario itself names ("60 s later").
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs

from .. import events
from ..faults import RegisterFault
from ..pods import ScenarioError
from ..profiles import DEFAULT_PROFILE
from ..wire import ListedDevice, PluginConnection, PluginOptions, decode_devices
from .kubelet import MakeKubelet, simulated
from .model import Failed, NotApplicable, Route
from .subject import Instance, Staging, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

    from .kubelet import ConformanceKubelet

__all__ = ["Case", "Facts", "Scene"]

LENIENCE = 10.0
"""A verdict's limit is so many times the time that the rule names."""

STORY = 8
"""So many last events are told with a failure."""


@attrs.frozen(kw_only=True)
class Facts:
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


class Scene:
    """One kubelet with the plugin on it, and what a check asks about them."""

    def __init__(self, case: Case, kubelet: ConformanceKubelet, tasks: TaskGroup) -> None:
        self.case = case
        self.kubelet = kubelet
        self.resource = case.facts.resource
        self.instances: list[Instance] = []
        self._tasks = tasks
        self._expected_to_end: set[int] = set()

    # The plugin ----------------------------------------------------------------------------------------------------

    @property
    def plugin(self) -> Instance:
        """The instance that was started last."""
        return self.instances[-1]

    def refuse(self, text: str, *, code: str = "UNKNOWN", times: int | None = 1) -> None:
        """Let the next Register calls for the resource be answered with this error; other resources are not concerned."""
        self.kubelet.faults.register(RegisterFault(code=code, text=text, resource=self.resource), times=times)

    async def start_plugin(self, staging: Staging | None = None) -> Instance:
        """Start one more instance; it need not be registered yet."""
        instance: Instance = await self._tasks.start(self._hold, staging or Staging())
        self.instances.append(instance)
        return instance

    async def _hold(self, staging: Staging, *, task_status: TaskStatus[Instance]) -> None:
        """Keep an instance until the scene is over: in a task of its own, because contexts must be left where entered."""
        async with self.case.subject.start(self.kubelet.paths, staging, self.kubelet.events.touch) as instance:
            task_status.started(instance)
            await anyio.sleep_forever()

    async def stop(self, instance: Instance) -> float:
        """Ask an instance to end and return the seconds that it took.

        Raises:
            Failed: It does not end.
        """
        within = self.case.limit(2.0)
        self.may_end(instance)
        try:
            return (await instance.stop(within)).seconds
        except TimeoutError:
            raise Failed(f"the plugin was still running {within:g} s after SIGTERM") from None

    def may_end(self, instance: Instance) -> None:
        """Do not take the end of this instance for a failure."""
        self._expected_to_end.add(id(instance))

    # Waiting -------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], within: float, otherwise: str) -> float:
        """Wait until a condition holds and return the seconds that it took.

        Args:
            condition: Looked at whenever something happens to the kubelet, and every 20 ms.
            within: Seconds to wait.
            otherwise: What was seen instead, for the failure.

        Raises:
            Failed: It did not hold in time, or the plugin ended.
        """
        began = time.monotonic()
        while not condition():
            left = began + within - time.monotonic()
            if left <= 0:
                raise self.failed(f"{otherwise} within {within:.3g} s")
            self.check_alive()
            with anyio.move_on_after(min(left, 0.02)):
                await self.kubelet.events.change()
        return time.monotonic() - began

    def check_alive(self) -> None:
        """Raise if an instance has ended although nobody asked it to."""
        for instance in self.instances:
            if instance.ending is not None and id(instance) not in self._expected_to_end:
                raise self.failed(f"the plugin {instance.ending}")

    def failed(self, saw: str) -> Failed:
        """Return the failure, with the kubelet's last events."""
        story = self.kubelet.events.story(STORY) if len(self.kubelet.events) else ""
        lines = [line[:200] for line in story.splitlines()]
        said = [line[:200] for instance in self.instances for line in instance.said().splitlines()[-4:]]
        told = "".join(["\n", "what the kubelet saw last:\n", "\n".join(lines)]) if lines else ""
        return Failed(saw + told + ("\nwhat the plugin said last:\n  " + "\n  ".join(said) if said else ""))

    def require(self, condition: object, otherwise: str) -> None:
        """Raise the failure unless the condition holds."""
        if not condition:
            raise self.failed(otherwise)

    async def connected(self, resource: str | None = None, *, streams: int = 1, lists: int = 0) -> float:
        """Wait until so many streams of a resource are open and more than ``lists`` lists have come."""
        name = resource or self.resource

        def holds() -> bool:
            came = len(self.kubelet.events.of(events.ListReceived, resource=name))
            return self.kubelet.is_running and self.kubelet.streams(name) >= streams and came > lists

        return await self.until(holds, self.case.patience_for_connecting, f"no device list of {name} came")

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
            told = " and ".join(f"{count} {name}" for name, count in found.items())
            raise self.failed(f"{told} although nothing had happened that calls for it")

    async def elapse(self, seconds: float) -> None:
        """Let a time pass that the scenario names; fail if the plugin ends meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check_alive()
            with anyio.move_on_after(min(left, 0.05)):
                await self.kubelet.events.change()
        self.check_alive()

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
        if len(self.healthy) < count:
            raise NotApplicable(
                f"{count} healthy device{'s are' if count > 1 else ' is'} needed, {self.resource} lists {len(self.healthy)}"
            )
        return self.healthy[:count]

    def health_of(self, device: str) -> str | None:
        """Return the health text of a listed device; None: it is not listed."""
        held = self.listed.get(device)
        return None if held is None else held.health

    @property
    def client(self) -> PluginConnection:
        """The kubelet's connection to the plugin."""
        try:
            return self.kubelet.plugin(self.resource)
        except ScenarioError:
            raise self.failed(f"the kubelet has no connection to {self.resource} any more") from None

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
    facts: Facts
    profile: str = DEFAULT_PROFILE
    patience: float = 1.0
    scale: float = 1.0
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    kubelet: MakeKubelet = simulated

    def limit(self, target: float) -> float:
        """Return the seconds after which a rule counts as broken that names ``target`` seconds."""
        return target * LENIENCE * self.patience

    def span(self, seconds: float) -> float:
        """Return a time that the scenario names."""
        return seconds * self.scale

    @property
    def patience_for_connecting(self) -> float:
        """Seconds to wait until a plugin that was started or lost is connected."""
        return 30.0 * max(self.patience, 0.1)

    def needs_two(self, count: int = 2) -> None:
        """Refuse at once if the plugin has not so many healthy devices."""
        if len(self.facts.healthy) < count:
            raise NotApplicable(
                f"{count} healthy device{'s are' if count > 1 else ' is'} needed, {self.facts.resource} lists "
                f"{len(self.facts.healthy)}"
            )

    @asynccontextmanager
    async def node(
        self,
        *,
        autostart: bool = True,
        profile: str | None = None,
        listener: Callable[[events.Event], None] | None = None,
        root: Path | None = None,
    ) -> AsyncGenerator[Scene]:
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
                yield Scene(self, kubelet, tasks)
            finally:
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def connected(self, staging: Staging | None = None, *, profile: str | None = None) -> AsyncGenerator[Scene]:
        """Make a kubelet and a plugin that it knows, with every resource that the plugin had when it was met."""
        async with self.node(profile=profile) as scene:
            await scene.start_plugin(staging)
            for resource in self.facts.resources:
                await scene.connected(resource)
            yield scene


def plural(count: int, what: str) -> str:
    """Return "1 device", "2 devices"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def ids(devices: Iterable[str], most: int = 4) -> str:
    """Return some ids as text."""
    names = sorted(devices)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
