"""Two kubelets with one manner: a scenario is played on either, and what it saw is compared.

`Play` is what a scenario is given: the kubelet, plugins that write down every call, and `Play.see`, which makes one
`Step` of what happened since the step before.
"""

from __future__ import annotations

import base64
import difflib
import itertools
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any

import anyio
import attrs

from kdp.kubelet import KubeletPaths
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.testing import (
    AdmissionError,
    AdmittedContainer,
    AdmittedPod,
    ContainerStartError,
    DeviceSpec,
    KubeletPanic,
    MountSpec,
    Pod,
    SimulatedKubelet,
    events,
)
from kdp_testkit.patience import PATIENCE

from . import apis
from .devmgr import DeviceManager
from .recorder import Call, Recorder
from .tools import Minor

__all__ = ["Play", "Scenario", "Settings", "Step", "difference", "lines", "play"]

RESOURCE = "example.com/widget"
QUIET = 25
"""So many looks, 10 ms apart, without a call or a change: then a kubelet counts as having done all that was to be done.

Looks, not seconds: on a busy machine they take longer, and so does the kubelet.
"""

SELDOM = 0.1
"""Seconds between two looks of the real one at its own counts: a play asks for them, and needs no look by itself."""


@attrs.frozen(kw_only=True)
class Settings:
    """How the kubelet of a scenario is set."""

    topology_policy: str = "none"
    topology_scope: str = "container"
    numa_nodes: int = 2


@attrs.frozen
class Step:
    """What was seen from one moment to the next.

    Attributes:
        name: What the scenario did.
        outcome: What came of it, in words.
        calls: What the plugins were asked meanwhile, in order.
        capacity: Afterwards.
        allocatable: Afterwards.
    """

    name: str
    outcome: str
    calls: tuple[Call, ...]
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]

    def renamed(self, names: Mapping[str, str]) -> Step:
        """Return the same with other names for the devices."""
        word = re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, names)) + r")(?![\w.-])") if names else None

        def rename(text: str) -> str:
            if word is not None:
                text = word.sub(lambda found: names[found.group()], text)
            # What was sorted by the old names is sorted by the new ones.
            return re.sub(
                r"\[[^\[\]]+\]", lambda found: f"[{', '.join(sorted(found.group()[1:-1].split(', ')))}]", text
            )

        calls = (attrs.evolve(c, arguments={k: rename(str(v)) for k, v in c.arguments.items()}) for c in self.calls)
        return attrs.evolve(self, outcome=rename(self.outcome), calls=tuple(calls))

    def lines(self) -> list[str]:
        """Return the step for people, and for comparing."""
        said = [f"* {self.name}: {self.outcome}"]
        for call in self.calls:
            arguments = ", ".join(f"{name}={value}" for name, value in call.arguments.items())
            said.append(f"    {call.plugin} {call.name}({arguments})")
        said.append(
            f"    capacity {dict(sorted(self.capacity.items()))}, allocatable {dict(sorted(self.allocatable.items()))}"
        )
        return said


class Play:
    """A scenario's hold on one kubelet.

    Attributes:
        profile: Which version is played, as ``k137``.
        steps: What was seen.
        by_chance: Set by a scenario in which the kubelet chooses at random between devices that are alike: they are
            compared but for their names.
        any_order: Set by a scenario in which the kubelet asks several plugins in an order of its own.
    """

    def __init__(self, kubelet: SimulatedKubelet | DeviceManager, profile: str, clock: _Clock | None) -> None:
        self._kubelet = kubelet
        self._clock = clock
        self.profile = profile
        self.paths: KubeletPaths = kubelet.paths
        self.steps: list[Step] = []
        self.calls: list[Call] = []
        self.plugins: list[Recorder] = []
        self.by_chance = False
        self.any_order = False
        self._seen = 0
        self._told_replies = True
        self._concerned = 0
        self._watch = apis.PodWatch()

    # -- plugins -------------------------------------------------------------------------------------------------------

    async def plugin(
        self, name: str = "a.sock", *, resource: str = RESOURCE, directory: Path | None = None, **attributes: Any
    ) -> Recorder:
        """Make a plugin that listens."""
        plugin = Recorder(directory or self.paths.device_plugin_dir, name, resource=resource, calls=self.calls)
        for attribute, value in attributes.items():
            setattr(plugin, attribute, value)
        await plugin.serve()
        self.plugins.append(plugin)
        return plugin

    async def registered(self, name: str = "a.sock", **attributes: Any) -> Recorder:
        """Make a plugin, register it and wait until its list was counted."""
        plugin = await self.plugin(name, **attributes)
        answer = await plugin.register(self.paths.kubelet_socket)
        await self._until_listed(plugin, answer)
        await self.see(f"{name} registers", answer)
        return plugin

    async def _until_listed(self, plugin: Recorder, answer: str) -> None:
        """Wait for the stream that follows a registration; a kubelet that opens none differs in the next step."""
        with anyio.move_on_after(5 if answer == "ok" else 0):
            while not (plugin.streams and plugin.has_sent):  # noqa: ASYNC110 - plain values
                await anyio.sleep(0.01)

    async def register(self, plugin: Recorder, **fields: str) -> str:
        """Call Register, and see what comes of it."""
        answer = await plugin.register(self.paths.kubelet_socket, **fields)
        await self._until_listed(plugin, answer)
        said = "".join(f" {name}={value!r}" for name, value in fields.items())
        await self.see(f"{plugin.name} registers{said}", answer)
        return answer

    # -- the kubelet ---------------------------------------------------------------------------------------------------

    async def admit(self, pod: Pod) -> None:
        """Admit a pod, and see what comes of it."""
        try:
            outcome = _told(await self._kubelet.admit(pod), replies=True)
        except (AdmissionError, ContainerStartError) as error:
            outcome = str(error)
        except KubeletPanic:
            outcome = "the kubelet panics"
        await self.see(f"pod {pod.name} is admitted", outcome)

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that have not failed, by uid."""
        return self._kubelet.pods

    async def hints(self, pod: Pod) -> None:
        """See the NUMA hints that this pod would have now."""
        if isinstance(self._kubelet, DeviceManager):
            hints = await self._kubelet.hints(pod)
        else:
            hints = self._kubelet.topology_hints(pod)
        said = [
            f"{container} {resource} {', '.join(f'{list(nodes)}{chr(33) * preferred}' for nodes, preferred in each)}"
            for container, resources in hints.items()
            for resource, each in sorted(resources.items())
        ]
        await self.see(f"hints for {dict(pod.requests())}", "; ".join(said) or "none")

    async def health(self, pod: Pod) -> None:
        """See the health of its devices in this pod's status."""
        if isinstance(self._kubelet, DeviceManager):
            health = await self._kubelet.health(pod)
        else:
            health = self._kubelet.allocated_resources_status(pod)
        await self.see(
            f"the status of {pod.name}", str({name: dict(sorted(each.items())) for name, each in health.items()})
        )

    async def pod_resources(self, method: str, *, calls: int = 1, **fields: str) -> None:
        """Call the pod-resources API, and see what it says."""
        said = await apis.pod_resources(self.paths.pod_resources_socket, method, calls, **fields)
        await self.see(f"{calls} {method} {fields or ''}", said)

    async def pods_api(self, method: str, *, calls: int = 1, **fields: str) -> None:
        """Call the pods API, and see what it says."""
        said = await apis.pods_api(self.paths.pods_api_socket, method, calls, **fields)
        await self.see(f"{calls} {method} {fields or ''}", said)

    @asynccontextmanager
    async def watching_pods(self) -> AsyncGenerator[None]:
        """Have a WatchPods open; `watched` sees what it says."""
        watch = self._watch = apis.PodWatch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run, self.paths.pods_api_socket)
            yield
            tasks.cancel_scope.cancel()

    async def watched(self, name: str) -> None:
        """See what WatchPods has said since."""
        await self.see(name)
        said, self._watch.said = self._watch.said, []
        await self.see(f"watched: {name}", "; ".join(said))

    async def readmit(self) -> None:
        """Admit all known pods again, and see what comes of it."""
        try:
            results = await self._kubelet.readmit()
        except KubeletPanic:
            await self.see("all pods are admitted again", "the kubelet panics")
            return
        said = {
            uid: _told(result, replies=self._told_replies) if isinstance(result, AdmittedPod) else str(result)
            for uid, result in results.items()
        }
        await self.see("all pods are admitted again", "; ".join(f"{uid}: {text}" for uid, text in sorted(said.items())))

    async def start_container(self, pod: Pod, container: str = "main") -> None:
        """Start a container again, and see what comes of it."""
        try:
            given = await self._kubelet.start_container(pod, container)
            outcome = f"started; {_told_one(container, given, replies=True)}"
        except ContainerStartError as error:
            outcome = str(error)
        await self.see(f"container {container} of {pod.name} is started", outcome)

    async def delete(self, pod: Pod) -> None:
        """Remove a pod."""
        await self._kubelet.delete(pod)
        await self.see(f"pod {pod.name} is deleted", "gone")

    async def restart(
        self, *, reboot: bool = False, gone: Pod | None = None, checkpoint: str | EllipsisType | None = ...
    ) -> None:
        """Kill the kubelet and start it again.

        Args:
            reboot: No container runs any more.
            gone: A pod that is deleted meanwhile.
            checkpoint: What the checkpoint's file holds then instead; None: it is gone.
        """
        said = ["the node reboots" if reboot else "the kubelet is killed and started"]
        if self._kubelet.is_running:
            await self._kubelet.crash()
        if gone is not None:
            await self._kubelet.delete(gone)
            said.append(f"pod {gone.name} is deleted meanwhile")
        file = self.paths.device_plugin_dir / "kubelet_internal_checkpoint"
        if checkpoint is None:
            file.unlink()
            said.append("the checkpoint is lost")
        elif isinstance(checkpoint, str):
            file.write_text(checkpoint)
            said.append("the checkpoint is broken")
        await self._kubelet.start()
        if reboot:
            await self._kubelet.restart(reboot=True)
        self._told_replies = reboot  # a container that runs on is not given its reply again
        await self.see(", ".join(said), "runs")

    async def checkpoint(self) -> None:
        """See what the checkpoint holds."""
        try:
            text = (self.paths.device_plugin_dir / "kubelet_internal_checkpoint").read_text()
        except FileNotFoundError:
            await self.see("the checkpoint", "there is none")
            return
        data = json.loads(text)["Data"]
        said = [
            f"{entry['PodUID']}/{entry['ContainerName']} {entry['ResourceName']} "
            f"{ {node: sorted(ids) for node, ids in sorted(entry['DeviceIDs'].items())} } "
            f"{v1beta1.ContainerAllocateResponse.FromString(base64.b64decode(entry['AllocResp']))!s}"
            for entry in data["PodDeviceEntries"] or ()
        ]
        registered = {name: sorted(ids or ()) for name, ids in sorted(data["RegisteredDevices"].items())}
        await self.see("the checkpoint", " ".join(("; ".join(sorted(said)) + f"; registered {registered}").split()))

    async def stop_and_start(self) -> None:
        """Stop the device manager in its own good order and start it again."""
        await self._kubelet.stop()
        await self._kubelet.start()
        await self.see("the device manager is stopped and started", "runs")

    async def pass_time(self, seconds: float) -> None:
        """Let a plugin that is gone have gone this long ago."""
        if isinstance(self._kubelet, DeviceManager):
            await self._kubelet.age(seconds)
        else:
            assert self._clock is not None
            self._clock.offset += seconds
        await self.see(f"{seconds:g} s pass", "")

    async def until_called(self, name: str, times: int = 1, *, seconds: float = PATIENCE) -> None:
        """Wait until a call came that often; a kubelet that does not make it differs in the next step."""
        with anyio.move_on_after(seconds):
            while sum(call.name == name for call in self.calls) < times:  # noqa: ASYNC110 - a plain list
                await anyio.sleep(0.01)

    async def see(self, name: str, outcome: str = "") -> None:
        """Wait until all is quiet, and write down what happened since the step before."""
        before: tuple[object, ...] = ()
        quiet = 0
        while quiet < QUIET:
            now = (len(self.calls), *await self._count(), sum(plugin.streams for plugin in self.plugins))
            is_quiet = now == before and all(plugin.has_sent for plugin in self.plugins)
            before, quiet = now, quiet + 1 if is_quiet else 0
            await anyio.sleep(0.01)
        calls = _unraced(self.calls[self._seen :])
        if self.any_order:
            calls.sort(key=lambda call: call.plugin)
        self._seen = len(self.calls)
        capacity, allocatable = await self._count()
        concerned = self._pods_concerned()
        if concerned:
            outcome = f"{outcome} (the status of {concerned} is written again)"
        self.steps.append(Step(name, self._plain(outcome), tuple(map(self._plain_call, calls)), capacity, allocatable))

    def _pods_concerned(self) -> list[str]:
        """Return the pods whose devices' health has changed since the step before."""
        if isinstance(self._kubelet, DeviceManager):
            told = self._kubelet.affected
        else:
            told = [uid for event in self._kubelet.events.of(events.PodsConcerned) for uid in event.uids]
        news, self._concerned = told[self._concerned :], len(told)
        return sorted(set(news))

    async def _count(self) -> tuple[dict[str, int], dict[str, int]]:
        if not self._kubelet.is_running:
            return {}, {}
        if isinstance(self._kubelet, DeviceManager):
            count = await self._kubelet.count()
            return dict(count.capacity), dict(count.allocatable)
        return self._kubelet.capacity(), self._kubelet.allocatable()

    def _plain(self, text: str) -> str:
        """Take out what differs from run to run: the directories."""
        for path, word in (
            (self.paths.device_plugin_dir, "{device-plugins}"),
            (self.paths.plugins_registry_dir, "{plugins_registry}"),
        ):
            text = text.replace(str(path), word)
        return _ENDPOINT.sub("{connection} {end}", text)

    def _plain_call(self, call: Call) -> Call:
        return attrs.evolve(
            call, arguments={k: self._plain(v) if isinstance(v, str) else v for k, v in call.arguments.items()}
        )


Scenario = Callable[[Play], Awaitable[None]]


class _Clock:
    """The simulated kubelet's, which can be put forward."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset


@asynccontextmanager
async def _kubelet(minor: Minor, *, simulated: bool, settings: Settings) -> AsyncGenerator[Play]:
    if simulated:
        clock = _Clock()
        async with SimulatedKubelet(profile=minor.profile, clock=clock, **attrs.asdict(settings)) as kubelet:
            yield Play(kubelet, minor.profile, clock)
    else:
        async with DeviceManager(minor, look=SELDOM, **attrs.asdict(settings)) as manager:
            yield Play(manager, minor.profile, None)


async def play(scenario: Scenario, minor: Minor, *, simulated: bool, settings: Settings | None = None) -> list[Step]:
    """Play a scenario on one kubelet, and return what was seen."""
    async with _kubelet(minor, simulated=simulated, settings=settings or Settings()) as on:
        try:
            await scenario(on)
        finally:
            for plugin in on.plugins:
                await plugin.stop()
        return _named_alike(on.steps) if on.by_chance else on.steps


def difference(simulated: Sequence[str], real: Sequence[str]) -> str:
    """Return what differs between the lines of two plays, for people; empty if nothing does."""
    if list(simulated) == list(real):
        return ""
    return "\n".join(difflib.unified_diff(simulated, real, "simulated", "real", lineterm="", n=50))


def lines(steps: Iterable[Step]) -> list[str]:
    """Return what was seen, for comparing."""
    return [line for step in steps for line in step.lines()]


def _told(admitted: AdmittedPod, *, replies: bool) -> str:
    """Say what each container was given."""
    said: list[str] = []
    for container in admitted.pod.in_order:
        said.append(_told_one(container.name, admitted.containers[container.name], replies=replies))
    return "admitted; " + "; ".join(said)


def _told_one(name: str, given: AdmittedContainer, *, replies: bool) -> str:
    reply = given.reply
    parts = [f"{name}: {{{', '.join(f'{r}: {list(ids)}' for r, ids in sorted(given.devices.items()))}}}"]
    if replies:
        parts.append(
            f"envs={dict(sorted(reply.envs.items()))} devices={sorted(map(_device, reply.devices))} "
            f"mounts={sorted(map(_mount, reply.mounts))} annotations={dict(sorted(reply.annotations.items()))} "
            f"cdi={sorted(reply.cdi_devices)}"
        )
    return " ".join(parts)


def _unraced(calls: list[Call]) -> list[Call]:
    """Put NotifyRegistrationStatus before the ListAndWatch beside it: the kubelet makes both at once."""
    ordered = list(calls)
    for n, (call, following) in enumerate(itertools.pairwise(calls)):
        if (call.name, following.name) == ("ListAndWatch", "NotifyRegistrationStatus"):
            ordered[n], ordered[n + 1] = following, call
    return ordered


def _device(device: DeviceSpec) -> str:
    return f"{device.host_path}:{device.container_path}:{device.permissions}"


def _mount(mount: MountSpec) -> str:
    return f"{mount.host_path}:{mount.container_path}:{'ro' if mount.read_only else 'rw'}"


_ENDPOINT = re.compile(r"0x[0-9a-f]+ \{\d+ -?\d+ 0x[0-9a-f]+\}")
"""What Go prints of an endpoint's connection and of the time of its end: an address and three numbers."""


def _named_alike(steps: list[Step]) -> list[Step]:
    """Name the devices anew, in the one way of all that sorts first: what differs by names alone becomes equal."""
    names = sorted({name for step in steps for call in step.calls for name in _ids(call)})
    return min(
        (
            [step.renamed(dict(zip(names, new, strict=True))) for step in steps]
            for new in itertools.permutations([f"#{n}" for n in range(len(names))])
        ),
        key=lambda renamed: [step.lines() for step in renamed],
    )


def _ids(call: Call) -> set[str]:
    groups = call.arguments.get("containers", [call.arguments.get("ids", [])])
    assert isinstance(groups, list)
    return {name for group in groups for name in group}
