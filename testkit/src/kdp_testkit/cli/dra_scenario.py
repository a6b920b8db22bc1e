"""The scenario of ``kdp simulate --mode dra``: a driver's process, a simulated node, and an API server.

The scheduler's work is done here, in the simplest way: the first devices that a claim can have are allocated to claims,
and pods are said to use them. There are claims of one device, of two, of as many as there are, and with two requests.
``kdp conformance --mode dra`` judges a driver in 60 scenarios. This one shows the usual life of a claim.
"""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final

import anyio
import attrs
from typing_extensions import override

from kdp.kubelet import KubeletPaths

from ..conformance.scene import plural
from ..dra import events as seen
from ..dra import objects
from ..dra.kubelet import SimulatedDraKubelet
from ..dra.pods import DraPod, PodStartError, PodStopError
from ..dra.profiles import DraTimings
from ..dra.runtime import cdi_devices
from ..dra.server import SimulatedApiServer, write_kubeconfig
from ..events import KubeletStarted
from .claimable import Claimable, claimable, keeping, share, sizes
from .scenario_base import DOWNTIME, BaseScenario, Misconfigured, ScenarioFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from anyio.abc import Process

NODE = "node0"
CLAIM = "simulated"
_UID = re.compile(r"\(([^()\s]+)\): ")
"""The claim's UID in a line of the log."""

_PREPARING = "kdp.dra.claims.prepare"
"""The logger that says why a claim was not prepared."""

_VERDICT_SECONDS = 5.0
"""Seconds within which the log follows the driver's answer."""

_TIMINGS = DraTimings(watcher=0.1)
"""The kubelet's own look for sockets is every second; a scenario is for people who wait for it."""

_Object = dict[str, Any]


@attrs.frozen
class _Held:
    """A pod that has a claim.

    Attributes:
        pod: The pod.
        claim: The claim's name.
        uid: The claim's UID.
    """

    pod: DraPod
    claim: str
    uid: str


class _NotStarted(Exception):
    """A claim was not prepared."""

    def __init__(self, held: _Held, cause: PodStartError) -> None:
        super().__init__(str(cause))
        self.held = held
        self.cause = cause


@final
class DraScenario(BaseScenario):
    """One run of the scenario; see `BaseScenario`.

    Args:
        arguments: What follows ``kdp run``: the target and its options.
        tells_status: Whether the driver was told to write the status of devices into claims.
        more: As of `BaseScenario`.
    """

    WHAT = "driver"

    def __init__(self, arguments: Sequence[str], *, tells_status: bool, **more: Any) -> None:
        super().__init__(arguments, **more)
        self._tells_status = tells_status
        self._driver = ""
        self._verdicts: dict[str, str | None] = {}
        self._has_verdict = anyio.Event()
        self._cdi: Path
        self._kubelet: SimulatedDraKubelet
        self._server: SimulatedApiServer

    @override
    async def play(self) -> ScenarioFailed | Misconfigured | None:
        with TemporaryDirectory(prefix="kdp-", ignore_cleanup_errors=True) as root:
            folder = Path(root)
            async with SimulatedApiServer(self._profile) as server:
                self._server = server
                await server.ask("POST", objects.NODES, objects.node(NODE))
                async with SimulatedDraKubelet(
                    server.ask, folder / "k", node=NODE, profile=self._profile, timings=_TIMINGS
                ) as kubelet:
                    self._kubelet = kubelet
                    (started,) = kubelet.events.of(KubeletStarted)
                    self.tell(
                        "kubelet_started",
                        f"kubelet {self._profile} looks for drivers in {kubelet.registry}, API server of Kubernetes "
                        f"{server.api.profile.kubernetes} at {server.url}",
                        {"profile": self._profile, "plugins_registry_dir": str(kubelet.registry), "server": server.url},
                        at=started.time,
                    )
                    self._cdi = folder / "cdi"
                    async with self.process(*_directories(folder, kubelet, server.url)) as driver:
                        return await self.against(self._steps(driver), driver)

    @override
    def as_failure(self, error: Exception) -> ScenarioFailed | None:
        if isinstance(error, (PodStartError, _NotStarted)):
            return ScenarioFailed(f"the pod could not start: {error}")
        if isinstance(error, PodStopError):
            return ScenarioFailed(f"the pod could not end: {error}")
        return None

    # The steps -----------------------------------------------------------------------------------------------------

    async def _steps(self, driver: Process) -> None:
        await self._registers()
        before = await self._publishes()
        held = await self._prepares(before)
        self.check_tried(held is not None)
        await self._comes_back(before)
        if held is not None:
            await self._unprepares(held)
        paths = KubeletPaths.simulated(self._kubelet.root)
        await self.stops(driver, paths.plugins_registry_dir, paths.plugins_dir / self._driver)
        slices = await self._slices()
        if len(slices) != len(before):
            raise ScenarioFailed(
                f"the driver left {len(slices)} slices behind, before it were {len(before)}; they must stay"
            )
        self.tell(
            "slices_stay",
            f"{plural(len(slices), 'slice')} left for the next version to take over",
            {"slices": len(slices)},
        )

    async def _registers(self) -> None:
        why = await self.until_ready(
            self._kubelet.events.change, lambda: self._kubelet.events.of(seen.DriverRegistered)
        )
        if why:
            raise self.never_ready("the driver was not registered, or published nothing", why)
        registered = self._kubelet.events.of(seen.DriverRegistered)[0]
        self._driver = registered.driver
        seconds = registered.time - self._started
        self.tell(
            "registered",
            f"{self._driver} registered for {registered.service}, {seconds * 1000:.0f} ms after the driver's start",
            {"driver": self._driver, "service": registered.service, "seconds": round(seconds, 6)},
            at=registered.time,
        )

    async def _publishes(self) -> list[_Object]:
        slices = await self._slices()
        devices = [device for each in slices for device in each["spec"].get("devices") or ()]
        kept = sum(bool(keeping(device)) for device in devices)
        pools = dict.fromkeys(each["spec"]["pool"]["name"] for each in slices)
        self.tell(
            "published",
            f"{self._driver}: {plural(len(devices), 'device')} in {plural(len(slices), 'slice')} of pool "
            f"{', '.join(pools)}" + (f", {kept} of them with a taint that keeps claims away" if kept else ""),
            {
                "driver": self._driver,
                "devices": [device["name"] for device in devices],
                "tainted": kept,
                "slices": len(slices),
            },
        )
        return slices

    async def _prepares(self, slices: Sequence[_Object]) -> _Held | None:
        """Try claims of each kind, in several sizes; return the pod that runs then; None: none was tried."""
        kinds = claimable(slices)
        if not kinds:
            self.tell("pod_skipped", f"{self._driver}: a claim can have none of the devices, so no pod was tried", {})
        held: _Held | None = None
        for number, found in enumerate(kinds):
            if held is not None:
                await self._ends(held)
            name = f"{CLAIM}-{number}"
            held = await self._first_claim(found[:1], name)
            larger = [(size, ("r0",)) for size in sizes(len(found))[1:]]
            for size, requests in [*larger, *([(2, ("r0", "r1"))] if larger else [])]:
                await self._ends(held)
                tried = await self._larger_claim(found[:size], f"{name}-{size}-of-{len(requests)}", requests)
                held = tried or await self._holding(found[:1], f"{name}-again-{size}-of-{len(requests)}")
        return held

    async def _first_claim(self, found: Sequence[Claimable], name: str) -> _Held:
        ((_, device),) = found
        began = time.monotonic()
        held = await self._holding(found, name)
        seconds = time.monotonic() - began
        edits = self._given(self._ids)
        self.tell(
            "claim_prepared",
            "\n".join(
                [
                    f"claim prepared in {seconds * 1000:.1f} ms: it has {device['name']}; its container "
                    + ("gets" if edits else "gets nothing"),
                    *_lines(edits),
                ]
            ),
            self._prepared(found, seconds, edits),
        )
        if self._tells_status:
            await self._tells_of_it(name, device["name"])
        return held

    async def _larger_claim(self, found: Sequence[Claimable], name: str, requests: Sequence[str]) -> _Held | None:
        """Try a claim of several devices. Its container uses all its requests.

        Returns `None` if the backend refuses such a claim with a sentence.

        Raises:
            ScenarioFailed: It got no answer.
            PodStartError: The driver failed.
        """
        size = len(found)
        what = f"a claim of {size} devices" + (f" in {len(requests)} requests" if len(requests) > 1 else "")
        began = time.monotonic()
        try:
            held = await self._holding(found, name, requests=requests)
        except _NotStarted as error:
            reason = await self._refusal(error.held.uid)
            if reason is None:
                raise error.cause from None
            await self._ends(error.held)
            fields = {"size": size, "reason": reason}
            self.tell("claim_refused", f"{what} is refused: {reason}", fields)
            return None
        seconds = time.monotonic() - began
        line = f"{what} is prepared in {seconds * 1000:.1f} ms"
        self.tell("claim_prepared", line, self._prepared(found, seconds, self._given(self._ids)))
        return held

    async def _holding(self, found: Sequence[Claimable], name: str, *, requests: Sequence[str] = ("r0",)) -> _Held:
        """Make a claim, allocate these devices to its requests in turn, and start a pod that uses it.

        Raises:
            ScenarioFailed: It got no answer.
            _NotStarted: The claim was not prepared.
        """
        pod = DraPod(claims={"devices": name})
        results = [
            objects.result(self._driver, each["name"], request=request, pool=pool, **share(each))
            for (pool, each), request in zip(found, itertools.cycle(requests), strict=False)
        ]
        made = await objects.allocated_claim(self._server.ask, name, results, pods=[pod], node=NODE)
        held = _Held(pod, name, made["metadata"]["uid"])
        names = ", ".join(device["name"] for _, device in found)
        try:
            given = await self.in_time(self._kubelet.start_pod(pod), f"a claim of {names} was not prepared")
        except PodStartError as error:
            raise _NotStarted(held, error) from None
        except ScenarioFailed as failed:
            raise await self._explained(failed, {device["name"] for _, device in found}) from None
        self._ids = given["main"]
        return held

    async def _explained(self, failed: ScenarioFailed, names: Collection[str]) -> ScenarioFailed:
        """Return a failure with the taints of its devices: a driver keeps a device back that it has not released."""
        devices = [device for each in await self._slices() for device in each["spec"].get("devices") or ()]
        taints = {each["name"]: ", ".join(keeping(each)) for each in devices if each["name"] in names}
        kept = "; ".join(f"the driver keeps {name} back by the taint {keys}" for name, keys in taints.items() if keys)
        return ScenarioFailed(f"{failed}; {kept}") if kept else failed

    async def _refusal(self, uid: str) -> str | None:
        """Return with which sentence the backend refused a claim, as the log has it; None: it did not, it failed."""
        with anyio.move_on_after(_VERDICT_SECONDS):
            while uid not in self._verdicts:
                await self._has_verdict.wait()
        return self._verdicts.get(uid)

    @override
    def take_record(self, record: Mapping[str, object]) -> None:
        found = _UID.search(str(record.get("msg")))
        if record.get("logger") == _PREPARING and found is not None:
            is_refused = record.get("hook") in ("allocate", "prepare_container")
            self._verdicts[found[1]] = str(record.get("reason")) if is_refused else None
            self._has_verdict.set()
            self._has_verdict = anyio.Event()

    def _prepared(self, found: Sequence[Claimable], seconds: float, edits: _Object) -> _Object:
        return {
            "devices": [device["name"] for _, device in found],
            "pools": sorted({pool for pool, _ in found}),
            "seconds": round(seconds, 6),
            "cdi_ids": list(self._ids),
            "edits": edits,
        }

    async def _tells_of_it(self, claim: str, device: str) -> None:
        async def device_entries() -> list[_Object]:
            while True:
                stored = await self._server.ask("GET", objects.claims(claim))
                if entries := stored["status"].get("devices"):
                    return list(entries)
                await _pause(self._kubelet)

        entries = await self.in_time(device_entries(), f"the claim did not say that {device} is ready")
        for entry in entries:
            words = [
                str(condition["type"]) for condition in entry.get("conditions") or () if condition["status"] == "True"
            ]
            network: Mapping[str, Any] = entry.get("networkData") or {}
            words += [
                f"{name} {value if isinstance(value, str) else ', '.join(value)}" for name, value in network.items()
            ]
            self.tell(
                "claim_status",
                f"the claim says of {entry['device']}: {'; '.join(words)}",
                {"device": entry["device"], "status": entry},
            )

    async def _comes_back(self, before: Sequence[_Object]) -> None:
        self.tell("kubelet_killed", "kubelet killed", {})
        began = time.monotonic()
        await self._kubelet.restart(down=DOWNTIME)

        def wiped() -> list[seen.SlicesWiped]:
            return [each for each in self._kubelet.events.of(seen.SlicesWiped) if each.time >= began and not each.error]

        def registered() -> list[seen.DriverRegistered]:
            return [each for each in self._kubelet.events.of(seen.DriverRegistered) if each.time >= began]

        await self.in_time(
            self._kubelet.until(wiped, "the node's slices are wiped", seconds=self._deadline), "nothing was wiped"
        )
        at = wiped()[0].time
        self.tell(
            "kubelet_started",
            "kubelet is back, and has deleted the node's slices, as it does at each start",
            {"profile": self._profile},
            at=at,
        )
        await self.in_time(
            self._kubelet.until(registered, f"{self._driver} is registered", seconds=self._deadline),
            f"{self._driver} was not registered after the kubelet's restart",
        )
        names = _names(before)

        async def published() -> float:
            while _names(await self._slices()) != names:
                await _pause(self._kubelet)
            return time.monotonic()

        back = await self.in_time(
            published(), f"{self._driver} did not publish its devices after the kubelet's restart"
        )
        self.tell(
            "published_again",
            (
                f"{self._driver} registered again, and its devices are published again {(back - at) * 1000:.1f} ms "
                "after the kubelet deleted them"
            ),
            {"driver": self._driver, "seconds": round(back - at, 6), "devices": sorted(names)},
            at=back,
        )

    async def _unprepares(self, held: _Held) -> None:
        began = time.monotonic()
        await self._ends(held)
        seconds = time.monotonic() - began
        self.tell("claim_unprepared", f"claim unprepared in {seconds * 1000:.1f} ms", {"seconds": round(seconds, 6)})

    async def _ends(self, held: _Held) -> None:
        """End a pod, see that nothing of its claim is left on the node, and delete the claim.

        Raises:
            ScenarioFailed: Something is, or it took too long.
            PodStopError: The claim was not unprepared.
        """
        await self.in_time(self._kubelet.stop_pod(held.pod), "the claim was not unprepared")
        left = [name for name in cdi_devices(self._cdi) if held.uid in name]
        if left:
            raise ScenarioFailed(f"the claim was unprepared, and CDI still describes {', '.join(left)}")
        await self._server.ask("DELETE", objects.claims(held.claim))

    # What there is ---------------------------------------------------------------------------------------------------

    async def _slices(self) -> list[_Object]:
        found: list[_Object] = (await self._server.ask("GET", objects.SLICES))["items"]
        return [each for each in found if each["spec"]["driver"] == self._driver]

    def _given(self, ids: Iterable[str]) -> _Object:
        """Return the edits of these CDI ids, put together.

        Raises:
            ScenarioFailed: One cannot be resolved, so that no container could be made.
        """
        specs = cdi_devices(self._cdi)
        found: _Object = {}
        for each in ids:
            if each not in specs:
                raise ScenarioFailed(
                    f"unresolvable CDI device {each}: the driver answered it, and no file describes it"
                )
            for kind, entries in specs[each].items():
                found.setdefault(kind, []).extend(entries)
        return found


def _directories(folder: Path, kubelet: SimulatedDraKubelet, url: str) -> tuple[str, ...]:
    return (
        *("--mode", "dra", "--node-name", NODE, "--kubeconfig", str(write_kubeconfig(folder, url))),
        # Nothing of the machine's own: a driver that serves here for real must not notice.
        *("--kubelet-root", str(kubelet.root), "--state-dir", str(folder / "state"), "--cdi-dir", str(folder / "cdi")),
        *("--plugins-registry-dir", str(kubelet.registry)),
    )


async def _pause(kubelet: SimulatedDraKubelet) -> None:
    """Wait for the next thing that happens to the kubelet, but not long: the API server has no word for it."""
    with anyio.move_on_after(0.005):
        await kubelet.events.change()


def _names(slices: Iterable[_Object]) -> set[str]:
    return {device["name"] for each in slices for device in each["spec"].get("devices") or ()}


def _lines(edits: Mapping[str, Any]) -> list[str]:
    """Return CDI's container edits in words."""
    return [
        *(f"env {each}" for each in edits.get("env") or ()),
        *(f"device {each.get('hostPath', each['path'])} at {each['path']}" for each in edits.get("deviceNodes") or ()),
        *(f"mount {each['hostPath']} at {each['containerPath']}" for each in edits.get("mounts") or ()),
        *(f"hook {each['hookName']} {each['path']}" for each in edits.get("hooks") or ()),
    ]
