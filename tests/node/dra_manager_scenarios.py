"""The scenarios that are played with the simulated DRA kubelet and with the DRA manager of each minor.

Each returns what was seen, as plain values. Both sides have a simulated API server, and `RecordingDriver`s as drivers.
"""

from __future__ import annotations

# ruff: noqa: ASYNC110 - what is in another process has no event here
import copy
import inspect
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import anyio
import attrs
import grpc
from tests.dra_recorder import BOTH, RecordingDriver
from tests.slice_cases import good

from kdp.proto import drahealth_v1_pb2 as health
from kdp_testkit.dra import events, objects
from kdp_testkit.dra.claims import SKIPPING
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraContainer, DraPod, PodStartError, PodStopError
from kdp_testkit.dra.profiles import PROFILES, DraProfile, DraTimings
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.patience import PATIENCE

from .dra_scenarios import DRIVER, SLICES, kubelet_observations, plain, skipping_observations
from .nodekit.devmgr import DeviceManagerEnded
from .nodekit.dra import DraManager
from .nodekit.tools import Minor

__all__ = ["SCENARIOS", "Scenario", "play_real", "play_simulated", "take_over"]

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
WATCHER: Final = 0.1
"""Seconds between two looks for drivers."""
WIPING_DELAY: Final = 2.0
"""Seconds: much more than a driver needs to come back."""
LONG: Final = 20.0
"""Seconds: a deadline for what comes."""
SHORT: Final = 3.0
"""Seconds that are waited for what may never come; what comes does so in half a second."""

Seen = dict[str, Any]


class Kubelet(Protocol):
    """What both sides have."""

    @property
    def root(self) -> Path: ...
    async def start(self) -> None: ...
    async def crash(self) -> None: ...
    async def restart(self) -> None: ...
    async def start_pod(self, pod: DraPod) -> Mapping[str, Sequence[str]]: ...
    async def stop_pod(self, pod: DraPod) -> None: ...
    def delete_pod(self, pod: DraPod) -> None: ...
    async def reconcile(self) -> None: ...
    async def until_registered(self, driver: str, *, instances: int = 1, seconds: float = PATIENCE) -> None: ...
    def registered(self) -> Any: ...


@attrs.define
class Play:
    """One side while a scenario is played with it.

    Attributes:
        kubelet: The simulated one or the real one.
        server: The API server.
    """

    kubelet: Kubelet
    server: SimulatedApiServer

    # -- the scheduler's work ------------------------------------------------------------------------------------------

    async def make_claim(self, name: str, skips: Sequence[str] = (), *, drivers: Iterable[str] = (DRIVER,)) -> None:
        """Have a claim that is allocated, with a device of each driver."""
        made = await self.server.ask("POST", CLAIMS, objects.claim(name))
        more: dict[str, Any] = {"skipNodeOperations": list(skips)} if skips else {}
        results = [objects.result(driver, name, **more) for driver in drivers]
        made["status"] = {"allocation": objects.allocation(results)}
        await self.server.ask("PUT", f"{CLAIMS}/{name}/status", made)

    async def reserve(self, pod: DraPod, *names: str) -> None:
        """Reserve claims for a pod; by default all of its own."""
        for name in names or pod.claims.values():
            claim = await self.server.ask("GET", f"{CLAIMS}/{name}")
            users: list[Any] = claim["status"].setdefault("reservedFor", [])
            users.extend(each for each in objects.reserved(pod) if each not in users)
            await self.server.ask("PUT", f"{CLAIMS}/{name}/status", claim)

    async def pod(self, name: str, *claims: str, drivers: Iterable[str] = (DRIVER,)) -> DraPod:
        """Return a pod with claims that are made for it and reserved."""
        made = DraPod(name=name, claims={claim: claim for claim in claims})
        for claim in claims:
            await self.make_claim(claim, drivers=drivers)
        await self.reserve(made)
        return made

    # -- what the kubelet says -----------------------------------------------------------------------------------------

    async def prepared(self, pod: DraPod) -> object:
        """Start a pod; return what its containers are given, or why it does not start."""
        try:
            given = await self.kubelet.start_pod(pod)
        except PodStartError as error:
            return str(error)
        # In which order claims and drivers come is decided by a map.
        return {container: sorted(cdi_ids) for container, cdi_ids in given.items()}

    async def unprepared(self, pod: DraPod) -> str:
        """Stop a pod; return why it does not, or ""."""
        try:
            await self.kubelet.stop_pod(pod)
        except PodStopError as error:
            return str(error)
        return ""

    def remembered(self) -> Seen:
        """Return the checkpoint by the claims' names; {}: there is none."""
        path = self.kubelet.root / "dra_manager_state"
        if not path.exists():
            return {}
        data = json.loads(json.loads(path.read_text())["Data"])
        return {
            state["ClaimName"]: {
                "pods": sorted(state["PodUIDs"]),
                "drivers": {name: _without_nothing(each) for name, each in state["DriverState"].items()},
            }
            for state in data["ClaimInfoStateList"] or ()
        }

    async def endpoints(self, driver: str = DRIVER) -> list[str]:
        """Return the names of the sockets of a driver's registered instances, oldest first."""
        found = self.kubelet.registered()
        table: Mapping[str, list[str]] = await found if inspect.isawaitable(found) else found
        return [Path(endpoint).name for endpoint in table.get(driver, ())]

    async def until_gone(self, driver: str = DRIVER) -> None:
        """Wait until no instance of a driver is registered."""
        with anyio.fail_after(LONG):
            while await self.endpoints(driver):
                await anyio.sleep(0.02)

    async def health(self, pod: DraPod) -> Seen:
        """Return the health of a pod's devices, without what has none."""
        if isinstance(self.kubelet, DraManager):
            said = await self.kubelet.dra_health(pod)
        else:
            assert isinstance(self.kubelet, SimulatedDraKubelet)
            said = self.kubelet.health(pod)
        return {
            container: {claim: each for claim, each in claims.items() if each} for container, claims in said.items()
        }

    def concerned(self) -> list[str]:
        """Return the pods whose status is written again because of the health of their devices, in order."""
        if isinstance(self.kubelet, DraManager):
            return list(self.kubelet.affected)
        assert isinstance(self.kubelet, SimulatedDraKubelet)
        return [uid for event in self.kubelet.events.of(events.PodsConcernedByHealth) for uid in event.uids]

    # -- drivers -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def driver(
        self, name: str = DRIVER, versions: Sequence[str] = BOTH, *, is_registered: bool = True, instance: str = ""
    ) -> AsyncGenerator[RecordingDriver]:
        """Have a driver, which is registered."""
        async with RecordingDriver(name, self.kubelet.root, versions=versions, instance=instance) as driver:
            if is_registered:
                await self.registered(driver)
            yield driver

    @asynccontextmanager
    async def drivers(self, versions: Mapping[str, Sequence[str]]) -> AsyncGenerator[list[RecordingDriver]]:
        """Have several drivers, which the kubelet finds at one look."""
        async with AsyncExitStack() as stack:
            found = [
                await stack.enter_async_context(self.driver(name, advertised, is_registered=False))
                for name, advertised in versions.items()
            ]
            for driver in found:
                await self.registered(driver)
            yield found

    async def registered(self, driver: RecordingDriver, *, instances: int = 1) -> None:
        """Wait until a driver is registered, and told so."""
        await self.kubelet.until_registered(driver.driver, instances=instances, seconds=LONG)
        assert await until(lambda: driver.notified, LONG)

    def plain(self, seen: object) -> Any:
        """Return what was seen without what differs between two runs."""
        return json.loads(plain(json.dumps(seen, sort_keys=True).replace(str(self.kubelet.root), "ROOT")))


def _without_nothing(state: Mapping[str, Any]) -> Seen:
    """Return a driver's part of the checkpoint; Go writes null for an empty list."""
    devices = [{key: value or None for key, value in device.items()} for device in state["Devices"] or ()]
    return {"devices": devices, "skips": state.get("skipNodeOperations") or []}


async def until(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait for something; return whether it came."""

    async def is_so() -> bool:
        found = condition()
        return bool(await found if inspect.isawaitable(found) else found)

    with anyio.move_on_after(seconds):
        while not await is_so():
            await anyio.sleep(0.02)
    return await is_so()


class _Pods:
    """The manners that the scenarios of the whole kubelet want."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._pods: dict[str, DraPod] = {}
        self.make_claim = play.make_claim

    async def _made(self, pod: str, *claims: str) -> DraPod:
        made = self._pods[pod] = DraPod(name=pod, claims={claim: claim for claim in claims})
        await self._play.reserve(made)
        return made

    async def start(self, pod: str, *claims: str) -> list[str]:
        given = await self._play.kubelet.start_pod(await self._made(pod, *claims))
        return sorted(each.partition("=")[2] for each in given["main"])

    async def fails(self, pod: str, *claims: str) -> str:
        try:
            given = await self._play.kubelet.start_pod(await self._made(pod, *claims))
        except PodStartError as error:
            return str(error)
        return f"it starts, with {given}"

    async def stop(self, pod: str) -> None:
        await self._play.kubelet.stop_pod(self._pods.pop(pod))

    async def restart(self) -> None:
        await self._play.kubelet.restart()
        await self._play.kubelet.until_registered(DRIVER, seconds=LONG)


# -- the scenarios -----------------------------------------------------------------------------------------------------


async def whole_kubelet(play: Play) -> Seen:
    """What is played with the whole kubelet: claims that are shared, errors, a restart."""
    async with play.driver() as driver:
        return await kubelet_observations(_Pods(play), driver)


async def skipping(play: Play) -> Seen:
    """Calls that a claim leaves out; the gate of that is on where there is one."""
    async with play.driver() as driver:
        return await skipping_observations(_Pods(play), driver)


async def skipping_is_off(play: Play) -> Seen:
    """Calls that a claim leaves out, with the kubelet's gate off."""
    async with play.driver() as driver:
        pod = DraPod(name="p", claims={"c": "c"})
        await play.make_claim("c", ("*",))
        await play.reserve(pod)
        return {"start": await play.prepared(pod), "calls": driver.methods(), "checkpoint": play.remembered()}


async def registration(play: Play) -> Seen:
    """Which version is spoken: the first of the driver's list that the kubelet knows."""
    seen: Seen = {}
    lists = (BOTH, BOTH[::-1], BOTH[:1], BOTH[1:], ("v9.DRAPlugin", "v1.DRAResourceHealth", BOTH[1], BOTH[0]))
    async with play.drivers({f"d{number}.example.com": versions for number, versions in enumerate(lists)}) as drivers:
        for number, driver in enumerate(drivers):
            pod = await play.pod(f"p{number}", f"c{number}", drivers=(driver.driver,))
            seen[" ".join(driver.versions)] = [
                await play.prepared(pod),
                await play.unprepared(pod),
                [version for _, version, _ in driver.calls],
                driver.notified,
            ]
    return seen


async def refused_registration(play: Play) -> Seen:
    """Registrations that fail: the texts, and whether they are tried again."""
    seen: Seen = {}
    async with (
        play.driver("none.example.com", (), is_registered=False) as none,
        play.driver("future.example.com", ("v9.DRAPlugin", "v8.DRAPlugin"), is_registered=False) as future,
        play.driver() as first,
    ):
        second = RecordingDriver(DRIVER, play.kubelet.root, instance="second")
        second.endpoint = first.endpoint
        async with second:
            for name, driver in {"none": none, "future": future, "second": second}.items():
                assert await until(lambda driver=driver: driver.notified, LONG)  # type: ignore[misc]
                seen[name] = driver.notified[0]
            asked = none, future, second
            await until(lambda: all(len(driver.notified) > 1 for driver in asked), SHORT)
            seen["again"] = [len(driver.notified) > 1 for driver in asked]
            seen["registered"] = await play.endpoints(), await play.endpoints("none.example.com")
    return seen


async def instances(play: Play) -> Seen:
    """Two instances of a driver: the newest is called, and when it is gone the other."""
    seen: Seen = {}
    async with play.driver(instance="old") as old:
        async with play.driver(instance="new", is_registered=False) as new:
            await play.registered(new, instances=2)
            seen["registered"] = await play.endpoints()
            pod = await play.pod("p1", "c1")
            seen["both"] = await play.prepared(pod), old.methods(), new.methods()
            await new.stop_serving()
            other = await play.pod("p2", "c2")
            # Until the kubelet has noticed, a call may still go to the one that is gone.
            with anyio.fail_after(LONG):
                while isinstance(await play.prepared(other), str):
                    await anyio.sleep(0.02)
            seen["the new one does not serve"] = await play.endpoints(), old.methods()[:1]
        await play.kubelet.until_registered(DRIVER, seconds=LONG)
        seen["the new one is gone"] = await play.endpoints()
        old.calls.clear()
        seen["unprepared"] = await play.unprepared(pod), await play.unprepared(other), old.methods()
    await play.until_gone()
    seen["both are gone"] = await play.endpoints(), await play.prepared(await play.pod("p3", "c3"))
    return seen


async def refused_pods(play: Play) -> Seen:
    """Pods that are refused before a driver is asked: nothing of them is remembered."""
    seen: Seen = {}
    async with play.driver() as driver:
        seen["no claim"] = await play.prepared(DraPod(name="none", claims={"c": "none"}))
        await play.server.ask("POST", CLAIMS, objects.claim("unallocated"))
        pod = DraPod(name="unallocated", claims={"c": "unallocated"})
        claim = await play.server.ask("GET", f"{CLAIMS}/unallocated")
        claim["status"] = {"reservedFor": objects.reserved(pod)}
        await play.server.ask("PUT", f"{CLAIMS}/unallocated/status", claim)
        seen["not allocated"] = await play.prepared(pod)
        await play.make_claim("unreserved")
        seen["not reserved"] = await play.prepared(DraPod(name="unreserved", claims={"c": "unreserved"}))
        await play.make_claim("foreign")
        foreign = DraPod(name="foreign", claims={"c": "foreign"}, templates=["c"])
        await play.reserve(foreign)
        seen["of a template, not its own"] = await play.prepared(foreign)
        absent = await play.pod("absent", "absent", drivers=("absent.example.com",))
        seen["no driver"] = await play.prepared(absent)
        both = DraPod(name="both", claims={"good": "good", "bad": "absent"})
        await play.make_claim("good")
        await play.reserve(both)
        seen["one without a driver"] = await play.prepared(both)
        seen["calls"] = driver.methods(), play.remembered()
        seen["their ends"] = [await play.unprepared(each) for each in (absent, both, foreign)], driver.methods()
    return seen


async def refusing_driver(play: Play) -> Seen:
    """A driver that refuses the call as a whole: the codes, and what is remembered."""
    seen: Seen = {}
    async with play.driver() as driver:
        pod = await play.pod("p", "a", "b")
        for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            driver.refuses = code, "it burns"
            seen[f"prepare {code.name}"] = await play.prepared(pod), driver.methods(), play.remembered()
            driver.calls.clear()
        driver.refuses = None
        seen["prepare"] = await play.prepared(pod), driver.methods(), play.remembered()
        driver.calls.clear()
        driver.refuses = grpc.StatusCode.INTERNAL, "it burns"
        seen["unprepare INTERNAL"] = await play.unprepared(pod), driver.methods(), play.remembered()
        driver.calls.clear()
        driver.refuses = None
        seen["unprepare"] = await play.unprepared(pod), driver.methods(), play.remembered()
    return seen


async def partial_answers(play: Play) -> Seen:
    """A driver that answers for one claim of two, then for both: what is remembered, and given to the containers."""
    seen: Seen = {}
    async with play.driver() as driver:
        pod = await play.pod("p", "a", "b")
        driver.skipped = {"b"}
        seen["one is skipped"] = await play.prepared(pod), play.remembered()
        driver.skipped = set()
        seen["then not"] = await play.prepared(pod), play.remembered()
        seen["calls"] = driver.methods()
        driver.calls.clear()
        for what, name, value in (
            ("error", "errors", {"NodeUnprepareResources a": "it burns"}),
            ("skipped", "skipped", {"a", "b"}),
            ("invented", "invents", True),
        ):
            kept = getattr(driver, name)
            setattr(driver, name, value)
            seen[f"unprepare, {what}"] = await play.unprepared(pod), play.remembered()
            setattr(driver, name, kept)
        seen["unprepare"] = await play.unprepared(pod), play.remembered(), len(driver.calls)
        seen["prepared again"] = await play.prepared(pod)
    return seen


async def two_drivers(play: Play) -> Seen:
    """A claim of two drivers: both are called, and the devices of both are given."""
    names = "one.example.com", "two.example.com"
    async with play.driver(names[0]) as one, play.driver(names[1]) as two:
        pod = await play.pod("p", "c", drivers=names)
        seen: Seen = {"start": (await play.prepared(pod), play.remembered(), one.methods(), two.methods())}
        two.errors = {"NodeUnprepareResources c": "it burns"}
        seen["one does not let go"] = await play.unprepared(pod), play.remembered()
        two.errors = {}
        seen["it does"] = await play.unprepared(pod), play.remembered()
    return seen


async def another_of_the_name(play: Play) -> Seen:
    """A claim is deleted and made anew while a pod holds the old one."""
    seen: Seen = {}
    async with play.driver() as driver:
        first = await play.pod("first", "c")
        await play.prepared(first)
        await play.server.ask("DELETE", f"{CLAIMS}/c")
        second = await play.pod("second", "c")
        seen["second"] = await play.prepared(second), driver.methods(), play.remembered()
        seen["the second ends"] = await play.unprepared(second), driver.methods(), play.remembered()
        seen["the first ends"] = await play.unprepared(first), driver.methods(), play.remembered()
        seen["then"] = await play.prepared(second), driver.methods()
    return seen


async def ends_that_are_not_theirs(play: Play) -> Seen:
    """A pod that never got a claim ends, while another one holds it."""
    seen: Seen = {}
    async with play.driver() as driver:
        holder = await play.pod("holder", "c")
        await play.prepared(holder)
        stranger = DraPod(name="stranger", claims={"c": "c"})
        seen["stranger"] = await play.prepared(stranger)
        seen["its end"] = await play.unprepared(stranger), driver.methods(), play.remembered()
        seen["the holder's end"] = await play.unprepared(holder), driver.methods(), play.remembered()
        seen["its second end"] = await play.unprepared(holder), driver.methods()
    return seen


async def while_it_is_unprepared(play: Play) -> Seen:
    """A second pod wants a claim while the driver unprepares it for the first."""
    seen: Seen = {}
    async with play.driver() as driver, anyio.create_task_group() as tasks:
        first = await play.pod("first", "c")
        await play.prepared(first)
        second = DraPod(name="second", claims={"c": "c"})
        await play.reserve(second)
        driver.calls.clear()
        driver.hangs = True

        async def end() -> None:
            with suppress(DeviceManagerEnded):
                await play.unprepared(first)

        tasks.start_soon(end)
        assert await until(lambda: driver.calls, LONG)
        seen["second"] = await play.prepared(second), driver.methods(), play.remembered()
        tasks.cancel_scope.cancel()
    return seen


async def while_it_is_prepared(play: Play) -> Seen:
    """A second pod wants a claim, and the first one ends, while the driver prepares it for the first."""
    seen: Seen = {}
    async with play.driver() as driver, anyio.create_task_group() as tasks:
        first = await play.pod("first", "c")
        second = DraPod(name="second", claims={"c": "c"})
        await play.reserve(second)
        driver.hangs = True

        async def begin() -> None:
            with suppress(DeviceManagerEnded):
                await play.prepared(first)

        tasks.start_soon(begin)
        assert await until(lambda: driver.calls, LONG)
        driver.hangs = False
        seen["second"] = await play.prepared(second), driver.methods(), play.remembered()
        seen["the first ends"] = await play.unprepared(first), driver.methods(), play.remembered()
        seen["the second ends"] = await play.unprepared(second), driver.methods(), play.remembered()
        tasks.cancel_scope.cancel()
    return seen


async def shares(play: Play) -> Seen:
    """Which share of a device a claim is given: in which versions it is told and remembered."""
    seen: Seen = {}
    names = {"new.example.com": BOTH[:1], "old.example.com": BOTH[1:]}
    async with play.drivers(names) as drivers:
        for driver in drivers:
            driver.share_id = "11111111-2222-3333-4444-555555555555"
            name = driver.driver.partition(".")[0]
            seen[name] = await play.prepared(await play.pod(name, name, drivers=(driver.driver,)))
    remembered = {name: state["drivers"] for name, state in play.remembered().items()}
    return {**seen, "remembered": remembered}


async def restarts(play: Play) -> Seen:
    """The kubelet is killed: what it remembers, what it asks again, and what it has lost with its checkpoint."""
    seen: Seen = {}
    async with play.driver() as driver:
        pods = [await play.pod(f"p{number}", f"c{number}") for number in range(4)]
        sharing = DraPod(name="sharing", claims={"c1": "c1"})
        await play.reserve(sharing)
        for pod in (*pods[:3], sharing):
            await play.prepared(pod)
        before = play.remembered()
        driver.calls.clear()

        async def restart() -> None:
            told = len(driver.notified)
            await play.kubelet.restart()
            await play.kubelet.until_registered(DRIVER, seconds=LONG)
            assert await until(lambda: len(driver.notified) > told, LONG)

        await restart()
        seen["remembered"] = play.remembered() == before
        driver.suffix = "-new"
        seen["a new sandbox"] = await play.prepared(pods[0]), driver.methods(), play.remembered()
        seen["and another"] = await play.prepared(pods[0]), driver.methods()
        driver.calls.clear()
        seen["ends, never asked again"] = await play.unprepared(pods[2]), driver.methods(), play.remembered()
        seen["one of two ends"] = await play.unprepared(sharing), driver.methods(), play.remembered()
        driver.calls.clear()
        (play.kubelet.root / "dra_manager_state").unlink()
        await restart()
        seen["ends, all is lost"] = await play.unprepared(pods[1]), driver.methods(), play.remembered()
        seen["starts, all is lost"] = await play.prepared(pods[0]), driver.methods()
    return seen


async def stopped_without_a_driver(play: Play) -> Seen:
    """The driver is gone when a pod ends: it stays until the driver is back."""
    seen: Seen = {}
    async with play.driver():
        pod = await play.pod("p", "c")
        await play.prepared(pod)
    await play.until_gone()
    seen["no driver"] = await play.unprepared(pod), play.remembered()
    seen["a new sandbox"] = await play.prepared(pod)
    async with play.driver() as driver:
        seen["it is back"] = await play.unprepared(pod), driver.methods(), play.remembered()
    return seen


async def deleted_by_force(play: Play) -> Seen:
    """Pods that vanish: the kubelet lets go of their claims at its next look."""
    seen: Seen = {}
    async with play.driver() as driver:
        alone, shared = await play.pod("alone", "a"), await play.pod("shared", "s")
        stays = DraPod(name="stays", claims={"s": "s"})
        await play.reserve(stays)
        for pod in (alone, shared, stays):
            await play.prepared(pod)
        driver.calls.clear()
        await play.kubelet.reconcile()
        seen["all are there"] = driver.methods(), play.remembered()
        play.kubelet.delete_pod(alone)
        play.kubelet.delete_pod(shared)
        driver.errors = {"NodeUnprepareResources a": "it burns"}
        await play.kubelet.reconcile()
        seen["it burns"] = driver.methods(), play.remembered()
        driver.errors = {}
        driver.calls.clear()
        await play.kubelet.reconcile()
        seen["then not"] = driver.methods(), play.remembered()
    return seen


async def slices(play: Play) -> Seen:
    """Which slices are wiped: all of the node at the kubelet's start, those of a driver that is gone for too long."""
    seen: Seen = {}
    names = "gone.example.com", "back.example.com", "deaf.example.com"

    async def publish(driver: str, node: str = "node0") -> None:
        item = copy.deepcopy(good(f"{driver.partition('.')[0]}-{node}"))
        item["spec"].update(driver=driver, nodeName=node)
        await play.server.ask("POST", SLICES, item)

    async def left() -> list[str]:
        return sorted(each["metadata"]["name"] for each in (await play.server.ask("GET", SLICES))["items"])

    async def until_left(count: int) -> list[str]:
        async def is_left() -> bool:
            return len(await left()) <= count

        await until(is_left, LONG)
        return await left()

    for driver, node in (("other.example.com", "node1"), ("any.example.com", "node0")):
        await publish(driver, node)
    await play.kubelet.restart()
    seen["after a restart"] = await until_left(1)
    async with play.drivers(dict.fromkeys(names, BOTH)) as (gone, back, deaf):
        for name in names:
            await publish(name)
        seen["published"] = await left()
        took = WIPING_DELAY
        while took > WIPING_DELAY / 2:  # on a busy machine it may be back too late
            began = time.monotonic()
            await back.stop()
            await play.until_gone(names[1])
            await back.start()
            await play.registered(back)
            took = time.monotonic() - began
            if len(await left()) < 4:
                await publish(names[1])
        await gone.stop()
        await deaf.stop_serving()
        seen["two are away"] = await until_left(2)
        seen["one is registered all the same"] = await play.endpoints(names[2])
        await gone.start()
        await play.registered(gone)
        await publish(names[0])
        seen["published again"] = await left()
        await gone.stop()
        seen["gone again"] = await until_left(2)
    await play.server.ask("DELETE", "/api/v1/nodes/node0")
    await publish("late.example.com")
    await play.kubelet.restart()
    seen["without a node"] = "late-node0" in await left()
    await play.server.ask("POST", "/api/v1/nodes", objects.node())
    seen["with it"] = await until_left(1)
    return seen


_ADVERTISED: Final[Mapping[str, Sequence[str]]] = {
    "none": BOTH,
    "old": (*BOTH, "v1alpha1.DRAResourceHealth"),
    "new": (*BOTH, "v1.DRAResourceHealth"),
    "both": (*BOTH, "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"),
}


async def asked_for_health(play: Play) -> Seen:
    """Which drivers are asked for their devices' health, and by which version; the gate of it is on."""
    return await _asked_for_health(play)


async def asked_for_health_by_default(play: Play) -> Seen:
    """The same with the gates as they are by default."""
    return await _asked_for_health(play)


async def _asked_for_health(play: Play) -> Seen:
    async with play.drivers({f"{name}.example.com": versions for name, versions in _ADVERTISED.items()}) as drivers:
        await until(lambda: all(driver.health_streams for driver in drivers), SHORT)
        return {driver.driver: sorted(set(driver.health_streams)) for driver in drivers}


def _report(*devices: tuple[str, str, str, int]) -> health.NodeWatchResourcesResponse:
    """Return a report of devices: name, health, message, timeout."""
    report = health.NodeWatchResourcesResponse()
    for name, state, message, timeout in devices:
        report.devices.add(
            device=health.DeviceIdentifier(pool_name="pool", device_name=name),
            health=health.HealthStatus.Value(state),
            message=message,
            health_check_timeout_seconds=timeout,
        )
    return report


async def health_of_devices(play: Play) -> Seen:
    """What a pod's status tells of its devices' health, and when the pods are told of it."""
    seen: Seen = {}
    async with play.driver(versions=_ADVERTISED["both"]) as driver:
        pod = await play.pod("p", "a", "b", "s")
        await play.prepared(pod)
        seen["nothing is known"] = await play.health(pod)
    await play.until_gone()
    driver.reports = [
        _report(*((name, "HEALTHY", "", 0) for name in "abs")),
        _report(("a", "HEALTHY", "", 0), ("b", "UNHEALTHY", "it burns", 0), ("s", "HEALTHY", "for a second", 1)),
    ]
    driver.notified.clear()

    async def until_told(state: str, claim: str, seconds: float) -> bool:
        async def is_told() -> bool:
            return state in json.dumps((await play.health(pod))["main"].get(f"claim:{claim}", {}))

        return await until(is_told, seconds)

    async with driver:
        await play.registered(driver)
        assert await until_told("Unhealthy", "b", LONG)
        assert await until(lambda: len(play.concerned()) >= 2, LONG)
        seen["told"] = play.concerned()
        seen["a short timeout ends"] = await until_told("Unknown", "s", SHORT)
        seen["then"] = await play.health(pod)
    seen["the driver is gone"] = await until_told("Unknown", "a", SHORT), await play.health(pod)
    return seen


async def health_outlives_the_kubelet(play: Play) -> Seen:
    """What a kubelet that was killed knows of the health of devices, before and after it hears of their driver."""
    seen: Seen = {}
    async with play.driver(versions=_ADVERTISED["both"], is_registered=False) as driver:
        driver.reports = [
            _report(("a", "UNHEALTHY", "it burns", 0), ("b", "HEALTHY", "for a second", 1), ("c", "HEALTHY", "", 0))
        ]
        await play.registered(driver)
        pod = await play.pod("p", "a", "b", "c")
        await play.prepared(pod)

        async def is_told() -> bool:
            return "Unhealthy" in json.dumps(await play.health(pod))

        assert await until(is_told, LONG)
        await play.kubelet.crash()
        await driver.stop()
        await play.kubelet.start()
        told = await play.health(pod)
        seen["killed"] = {claim: told.get("main", {}).get(f"claim:{claim}") for claim in ("a", "c")}
        driver.reports = [_report(("a", "HEALTHY", "", 0))]
        await driver.start()

        async def is_told_again() -> bool:
            return "Unhealthy" not in json.dumps(await play.health(pod))

        await play.registered(driver)
        assert await until(is_told_again, LONG)
        told = await play.health(pod)
        seen["told again"] = {claim: told["main"].get(f"claim:{claim}") for claim in ("a", "c")}
        assert await until(play.concerned, LONG)
        seen["pods"] = sorted(set(play.concerned()))
    return seen


async def health_by_name(play: Play) -> Seen:
    """Which claims of a container its health is told of, and under which name."""
    async with play.driver(versions=_ADVERTISED["both"]) as driver:
        pod = DraPod(
            name="p",
            claims={"mine": "c", "d": "d"},
            containers=(
                DraContainer("all", ["mine", "d"]),
                DraContainer("requests", [("d", "r0"), ("mine", "r0")]),
                DraContainer("others", [("d", "other"), ("mine", "other")]),
                DraContainer("both", [("d", "r0"), ("d", "other")]),
                DraContainer("none"),
            ),
        )
        for name in ("c", "d"):
            await play.make_claim(name)
        await play.reserve(pod)
        given = await play.prepared(pod)
        before = await play.health(pod)
        await play.unprepared(pod)
        return {"given": given, "prepared": before, "unprepared": await play.health(pod), "calls": driver.methods()}


async def health_streams_that_end(play: Play) -> Seen:
    """A health stream that ends is opened again, but not always where the driver does not know it."""
    seen: Seen = {}
    async with (
        play.driver("a.example.com", _ADVERTISED["both"], is_registered=False) as ignorant,
        play.driver("b.example.com", _ADVERTISED["both"], is_registered=False) as broken,
    ):
        ignorant.health_code, broken.health_code = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL
        assert await until(lambda: len(broken.health_streams) > 1, LONG)
        seen["it does not know it"] = await until(lambda: len(ignorant.health_streams) > 1, SHORT)
    return seen


@attrs.frozen
class Scenario:
    """A scenario and its settings.

    Attributes:
        play: Plays it.
        gates: Feature gates of the kubelet that are on, by minor.
        server_gates: The same of the API server.
    """

    play: Callable[[Play], Awaitable[Seen]]
    gates: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    server_gates: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])

    @property
    def name(self) -> str:
        """The scenario's name."""
        return getattr(self.play, "__name__", "")


_SKIPS: Final = {"1.37": (SKIPPING,)}
_HEALTH: Final = {"1.34": ("ResourceHealthStatus",)}

SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(whole_kubelet),
        Scenario(skipping, _SKIPS, _SKIPS),
        Scenario(skipping_is_off, {}, _SKIPS),
        Scenario(registration),
        Scenario(refused_registration),
        Scenario(instances),
        Scenario(refused_pods),
        Scenario(refusing_driver),
        Scenario(partial_answers),
        Scenario(two_drivers),
        Scenario(another_of_the_name),
        Scenario(ends_that_are_not_theirs),
        Scenario(while_it_is_unprepared),
        Scenario(while_it_is_prepared),
        Scenario(shares),
        Scenario(restarts),
        Scenario(stopped_without_a_driver),
        Scenario(deleted_by_force),
        Scenario(slices),
        Scenario(asked_for_health, _HEALTH),
        Scenario(asked_for_health_by_default),
        Scenario(health_of_devices, _HEALTH),
        Scenario(health_by_name, _HEALTH),
        Scenario(health_outlives_the_kubelet, _HEALTH),
        Scenario(health_streams_that_end, _HEALTH),
    )
}


@asynccontextmanager
async def _api_server(scenario: Scenario, minor: Minor) -> AsyncGenerator[SimulatedApiServer]:
    gates = dict.fromkeys(scenario.server_gates.get(minor.name, ()), True)
    async with SimulatedApiServer(minor.profile, gates=gates) as server:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        yield server


async def take_over(minor: Minor) -> Seen:
    """Let the simulation, the real manager, and the simulation again use one directory, with the other's files."""
    seen: Seen = {}
    with TemporaryDirectory(prefix="kdp-") as folder:
        root, profile = Path(folder), PROFILES[minor.profile]
        async with SimulatedApiServer(profile) as server:
            await server.ask("POST", "/api/v1/nodes", objects.node())
            async with SimulatedDraKubelet(
                server.ask, root, profile=profile, timings=DraTimings(watcher=WATCHER)
            ) as simulated:
                play = Play(simulated, server)
                pods = [await play.pod(f"p-{name}", name) for name in ("ready", "fails")]

                async def live(play: Play, suffix: str) -> list[object]:
                    async with play.driver() as driver:
                        driver.errors, driver.requests = {"NodePrepareResources fails": "it burns"}, ()
                        driver.suffix = suffix
                        return [await play.prepared(pod) for pod in pods]

                seen["simulated"] = await live(play, "-1")
                await simulated.crash()
                async with DraManager(minor, server.url, root=root, watcher=WATCHER) as manager:
                    seen["real"] = await live(Play(manager, server), "-2")
                await simulated.start()
                seen["simulated again"] = await live(play, "-3")
                async with play.driver() as driver:
                    seen["ends"] = [await play.unprepared(pod) for pod in pods], driver.methods()
                seen["left"] = play.remembered()
    return seen


async def play_real(scenario: Scenario, minor: Minor) -> Any:
    """Play a scenario with the DRA manager of a minor."""
    gates = ",".join(f"{gate}=true" for gate in scenario.gates.get(minor.name, ()))
    async with (
        _api_server(scenario, minor) as server,
        DraManager(minor, server.url, gates=gates, wiping_delay=WIPING_DELAY, watcher=WATCHER) as kubelet,
    ):
        play = Play(kubelet, server)
        return play.plain(await scenario.play(play))


async def play_simulated(scenario: Scenario, minor: Minor, profile: DraProfile | None = None) -> Any:
    """Play a scenario with the simulation of a minor, or with another profile instead of that minor's."""
    profile = profile or PROFILES[minor.profile]
    profile = attrs.evolve(profile, gates=profile.gates | set(scenario.gates.get(minor.name, ())))
    timings = DraTimings(watcher=WATCHER, wiping_delay=WIPING_DELAY, health_retry=1.0)
    async with (
        _api_server(scenario, minor) as server,
        SimulatedDraKubelet(server.ask, profile=profile, timings=timings) as kubelet,
    ):
        play = Play(kubelet, server)
        return play.plain(await scenario.play(play))
