"""The scenario of ``kdp simulate`` for device plugins: a plugin's process and the simulated kubelet."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, final

from typing_extensions import override

from kdp.model.names import MAX_DEVICE_ID_LENGTH

from .. import AdmissionError, AdmittedPod, ContainerReply, ContainerStartError, NotReached, Pod, SimulatedKubelet
from .. import events as seen
from .scenario_base import DOWNTIME, BaseScenario, Misconfigured, ScenarioFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import Process

    from ..protocol.wire import ListedDevice

MOST_DEVICES: Final = 256
"""Devices that one pod asks for at most: shared ones may be tens of thousands."""

_GIVEN_BACK: Final = 90.0
"""Seconds within which a plugin notices that pods have ended; kdp takes some 30."""

_ON_ITS_WAY: Final = 2.0
"""Seconds within which a list comes that a refusal was ahead of."""

_REFUSED: Final = "rpc error: code = FailedPrecondition desc = "
"""How a kubelet spells what a backend refuses by `kdp.AllocationError`: it may do so for several devices."""

_AFTER: Final = ", which is unexpected"


@final
class Scenario(BaseScenario):
    """One run of the scenario; see `BaseScenario`."""

    @override
    async def play(self) -> ScenarioFailed | Misconfigured | None:
        with TemporaryDirectory(prefix="kdp-", ignore_cleanup_errors=True) as root:
            async with SimulatedKubelet(root, profile=self._profile) as kubelet:
                paths = kubelet.paths
                (started,) = kubelet.events.of(seen.KubeletStarted)
                self.tell(
                    "kubelet_started",
                    f"kubelet {self._profile} listens in {paths.device_plugin_dir}",
                    {"profile": self._profile, "device_plugin_dir": str(paths.device_plugin_dir)},
                    at=started.time,
                )
                folder = paths.device_plugin_dir.parent
                directories = (
                    *("--device-plugin-dir", str(paths.device_plugin_dir)),
                    *("--plugins-registry-dir", str(paths.plugins_registry_dir)),
                    *("--pod-resources-dir", str(paths.pod_resources_dir)),
                    *("--pods-api-dir", str(paths.pods_api_dir)),
                    # Nothing of the machine's own: a plugin that serves here for real must not notice.
                    *("--kubelet-root", str(folder), "--state-dir", str(folder / "state")),
                )
                async with self.process(*directories) as plugin:
                    return await self.against(self._steps(kubelet, plugin), plugin)

    @override
    def as_failure(self, error: Exception) -> ScenarioFailed | None:
        if isinstance(error, (AdmissionError, ContainerStartError)):
            return ScenarioFailed(f"the pod was refused: {error}")
        return None

    # The steps -----------------------------------------------------------------------------------------------------

    async def _steps(self, kubelet: SimulatedKubelet, plugin: Process) -> None:
        resources = await self._registers(kubelet)
        for resource in resources:
            self._lists(kubelet, resource)
        self.check_declared()
        offered = {resource for resource, number in kubelet.allocatable().items() if number}
        tried = [
            await self._answers_for_pods(kubelet, resource, was_offered=resource in offered) for resource in resources
        ]
        self.check_tried(sum(tried))
        await self._comes_back(kubelet, resources)
        await self.stops(plugin, kubelet.paths.device_plugin_dir, kubelet.paths.plugins_registry_dir)

    async def _registers(self, kubelet: SimulatedKubelet) -> list[str]:
        await self._until_ready(kubelet)
        streaming = {event.resource for event in kubelet.events.of(seen.StreamOpened)}
        resources = sorted(streaming)
        for resource in resources:
            await self.in_time(kubelet.until(streaming=resource, timeout=self._deadline), f"{resource} sent no list")
            at = _registered_at(kubelet, resource, since=0.0)
            seconds = at - self._started
            self.tell(
                "registered",
                f"{resource} registered, {seconds * 1000:.0f} ms after the plugin's start",
                {"resource": resource, "seconds": round(seconds, 6)},
                at=at,
            )
        return resources

    async def _until_ready(self, kubelet: SimulatedKubelet) -> None:
        """Wait until the plugin itself says that every resource has a stream: only it knows how many there are."""
        why = await self.until_ready(kubelet.events.change, lambda: kubelet.events.of(seen.StreamOpened))
        if not why:
            return
        refused = [event.error for event in kubelet.events.of(seen.RegisterAnswered) if event.error]
        why = f"the kubelet answered {refused[-1]!r}" if refused else why
        raise self.never_ready("the plugin did not register", why)

    def _lists(self, kubelet: SimulatedKubelet, resource: str) -> None:
        last = kubelet.events.of(seen.ListReceived, resource=resource)[-1]
        devices = kubelet.devices(resource)
        if last.healthy + last.unhealthy != len(devices):
            raise ScenarioFailed(f"{resource} lists {last.healthy + last.unhealthy} devices, but some ids twice")
        for device in devices:
            if not 1 <= len(device) <= MAX_DEVICE_ID_LENGTH:
                raise ScenarioFailed(f"{resource} lists the id {device!r} of {len(device)} characters")
        self.tell(
            "listed",
            f"{resource}: {len(devices)} device{'' if len(devices) == 1 else 's'}, {last.healthy} healthy",
            {"resource": resource, "devices": sorted(devices), "healthy": last.healthy, "unhealthy": last.unhealthy},
            at=last.time,
        )

    async def _answers_for_pods(self, kubelet: SimulatedKubelet, resource: str, *, was_offered: bool) -> bool:
        """Try pods of several sizes, one after the other; return whether one was tried."""
        pod = await self._pod_of(kubelet, resource, was_offered=was_offered)
        if pod is None:
            self.tell("pod_skipped", f"{resource}: no healthy device, so no pod is tried", {"resource": resource})
            return False
        for size in _sizes(list(kubelet.devices(resource).values()))[1:]:
            await kubelet.delete(pod.pod)
            admitted = await self._larger_pod(kubelet, resource, size)
            pod = admitted or await self._admitted(kubelet, resource, 1)
        return True

    async def _pod_of(self, kubelet: SimulatedKubelet, resource: str, *, was_offered: bool) -> AdmittedPod | None:
        """Try a pod; None: no device is offered. Pods of other resources are ended if they hold what it needs, too."""
        while offered := kubelet.allocatable().get(resource):
            try:
                return await self._first_pod(kubelet, resource)
            except AdmissionError as error:
                if _REFUSED not in error.message or not await self._offers_less(kubelet, resource, offered):
                    raise
        if not was_offered or not kubelet.pods:
            return None
        for pod in [*kubelet.pods.values()]:
            await kubelet.delete(pod)
        text = (
            f"{resource}: the pods of other resources hold what it needs; they are ended, and that takes half a minute"
        )
        self.tell("pods_ended", text, {"resource": resource})
        with suppress(NotReached):
            await kubelet.until(lambda: kubelet.allocatable().get(resource), timeout=_GIVEN_BACK)
            return await self._first_pod(kubelet, resource)
        return None

    async def _offers_less(self, kubelet: SimulatedKubelet, resource: str, offered: int) -> bool:
        """Return whether a refusal came because the list with fewer devices was still on its way."""
        with suppress(NotReached):
            await kubelet.until(lambda: kubelet.allocatable().get(resource, 0) < offered, timeout=_ON_ITS_WAY)
            return True
        return False

    async def _first_pod(self, kubelet: SimulatedKubelet, resource: str) -> AdmittedPod:
        began = time.monotonic()
        pod = await self._admitted(kubelet, resource, 1)
        seconds = time.monotonic() - began
        reply, devices = pod.reply(), pod.devices(resource)
        self.tell(
            "pod_admitted",
            "\n".join(
                [
                    f"pod admitted in {seconds * 1000:.1f} ms: one {resource} is {', '.join(devices)}; its container "
                    + ("gets" if any(_reply_lines(reply)) else "gets nothing else"),
                    *_reply_lines(reply),
                ]
            ),
            _admission(resource, pod, seconds),
        )
        return pod

    async def _larger_pod(self, kubelet: SimulatedKubelet, resource: str, size: int) -> AdmittedPod | None:
        """Try a pod that asks for several devices; None: the backend refuses such a pod with a sentence.

        Raises:
            ScenarioFailed: It got no answer.
            AdmissionError: The plugin failed.
        """
        began = time.monotonic()
        try:
            pod = await self._admitted(kubelet, resource, size)
        except AdmissionError as error:
            if _REFUSED not in error.message:
                raise
            text = error.message.partition(_REFUSED)[2].removesuffix(_AFTER)
            fields = {"resource": resource, "size": size, "reason": text}
            self.tell("pod_refused", f"a pod with {size} {resource} is refused: {text}", fields)
            return None
        seconds = time.monotonic() - began
        line = f"a pod with {size} {resource} is admitted in {seconds * 1000:.1f} ms"
        self.tell("pod_admitted", line, _admission(resource, pod, seconds))
        return pod

    async def _admitted(self, kubelet: SimulatedKubelet, resource: str, size: int) -> AdmittedPod:
        number = "one" if size == 1 else str(size)
        failure = f"a pod that asks for {number} {resource} got no answer"
        return await self.in_time(kubelet.admit(Pod.asking({resource: size})), failure)

    async def _comes_back(self, kubelet: SimulatedKubelet, resources: Sequence[str]) -> None:
        before = {resource: sorted(kubelet.devices(resource)) for resource in resources}
        self.tell("kubelet_killed", "kubelet killed", {})
        await kubelet.restart(down=DOWNTIME)
        listening = kubelet.events.of(seen.KubeletStarted)[-1].time
        self.tell("kubelet_started", "kubelet listens again", {"profile": self._profile}, at=listening)
        for resource in resources:
            await self.in_time(
                kubelet.until(streaming=resource, timeout=self._deadline),
                f"{resource} did not come back after the kubelet's restart",
            )
            at = _registered_at(kubelet, resource, since=listening)
            after = sorted(kubelet.devices(resource))
            if not set(before[resource]) <= set(after):
                gone = ", ".join(sorted(set(before[resource]) - set(after)))
                raise ScenarioFailed(f"{resource} came back after the kubelet's restart without {gone}")
            self.tell(
                "registered_again",
                f"{resource} registered again, {(at - listening) * 1000:.1f} ms after the kubelet listened",
                {"resource": resource, "seconds": round(at - listening, 6), "devices": after},
                at=at,
            )


def _sizes(devices: Sequence[ListedDevice]) -> list[int]:
    """Return for how many devices pods ask: one, two, as many as each NUMA node has, and all healthy ones."""
    healthy = [device for device in devices if device.health == "Healthy"]
    nodes = Counter(device.numa_nodes[0] for device in healthy if device.numa_nodes and len(device.numa_nodes) == 1)
    of_nodes = nodes.values() if len(nodes) > 1 else ()
    return sorted({size for size in (1, 2, *of_nodes, len(healthy)) if size <= min(len(healthy), MOST_DEVICES)})


def _admission(resource: str, pod: AdmittedPod, seconds: float) -> dict[str, object]:
    return {
        "resource": resource,
        "devices": list(pod.devices(resource)),
        "seconds": round(seconds, 6),
        "reply": _reply_json(pod.reply()),
    }


def _registered_at(kubelet: SimulatedKubelet, resource: str, *, since: float) -> float:
    """Return when the plugin was heard of first: its Register, or what it told the plugin watcher."""
    heard = [
        *kubelet.events.of(seen.RegisterReceived, resource=resource),
        *kubelet.events.of(seen.PluginInfoReceived, resource=resource),
        *kubelet.events.of(seen.StreamOpened, resource=resource),
    ]
    return min(event.time for event in heard if event.time >= since)


def _reply_lines(reply: ContainerReply) -> list[str]:
    # Sorted, since a map of protobuf has its entries in any order.
    return [
        *(f"env {name}={value}" for name, value in sorted(reply.envs.items())),
        *(f"device {node.host_path} at {node.container_path}, {node.permissions}" for node in reply.devices),
        *(
            f"mount {mount.host_path} at {mount.container_path}, {'read-only' if mount.read_only else 'read-write'}"
            for mount in reply.mounts
        ),
        *(f"annotation {name}={value}" for name, value in reply.annotations.items()),
        *(f"CDI device {name}" for name in reply.cdi_devices),
    ]


def _reply_json(reply: ContainerReply) -> dict[str, object]:
    return {
        "env": dict(reply.envs),
        "device_nodes": [
            {"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions}
            for node in reply.devices
        ],
        "mounts": [
            {"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only}
            for mount in reply.mounts
        ],
        "annotations": dict(reply.annotations),
        "cdi_devices": list(reply.cdi_devices),
    }
