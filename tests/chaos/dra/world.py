"""`DraWorld`: a node with a kubelet, an API server, a DRA driver, pods, and claims."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final
from uuid import uuid4

import anyio
from tests.chaos.node import FROZEN, SLOW_DISK, Node, answers
from tests.chaos.plugin import CLOCK
from tests.chaos.plugin import node_of as card_node
from typing_extensions import override

from kdp.kubelet import KubeletPaths
from kdp.testing import CallError, ScenarioError
from kdp.testing import events as common
from kdp_testkit.dra import events, objects
from kdp_testkit.dra.claims import ClaimEntry, PreparedDevice
from kdp_testkit.dra.drivers import DriverConnection
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraPod, PodStartError, PodStopError
from kdp_testkit.dra.profiles import PROFILES, DraTimings
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.dra.status import ApiRefused
from kdp_testkit.dra.store import KINDS

from .driver import DRIVER, link_of
from .files import DriverFiles, damage
from .judge import RELEASE_SECONDS, DraJudge, Life

NODE = "node0"
CALL_SECONDS = 20.0
CLEAN_SECONDS = 30.0
"""Seconds in which all that is owed must be done at the end, and all files gone."""

QUICK = DraTimings(watcher=0.02, health_retry=0.1, wiping_delay=1.0, wiping_retry=0.1, reconcile=3.0, call=CALL_SECONDS)
_SLICES, _CLAIMS = KINDS[0], KINDS[1]


@final
class DraWorld(Node):
    """One node with a kubelet and a DRA driver.

    Args:
        directory: An empty directory of its own.
        kubelet: The kubelet, which runs; its events must come to `told`.
        server: The API server, which runs and has the node.
        rng: All choices come from it.
        environment: Of the driver's process, beside this process's own.

    Attributes:
        pods: Those that live, by UID.
        stopping: Those of them that must end.
        files: What the driver keeps on the disk.
    """

    program = "tests.chaos.dra.driver"
    imports = "tests.chaos.dra.driver"
    idle_start = 0.9

    def __init__(
        self,
        directory: Path,
        kubelet: SimulatedDraKubelet,
        server: SimulatedApiServer,
        rng: random.Random,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kubelet = kubelet
        self.server = server
        self.pods: dict[str, DraPod] = {}
        self.stopping: set[str] = set()
        self._judge = DraJudge()
        self._paths = KubeletPaths.simulated(kubelet.root)
        self._cdi = directory / "cdi"
        self.files = DriverFiles(DRIVER, self._paths.plugins_dir / DRIVER, self._cdi)
        self._kubeconfig = directory / "kubeconfig"
        self._pod_uid = rng.choice([None, self._new_uid(rng)])
        self._switches = {name: rng.choice(["on", "off"]) for name in ("device_status", "device_metadata")}
        self._numbers = itertools.count()
        self._broken_specs: set[str] = set()
        self._nodes: dict[int, str] = {}
        self._numbers_of_nodes = 1000
        super().__init__(directory, rng, environment)
        write_kubeconfig(directory, server.url)

    @property
    @override
    def judge(self) -> DraJudge:
        return self._judge

    @property
    @override
    def _options(self) -> Mapping[str, object]:
        return {
            "node_name": NODE,
            "kubelet_root": str(self.kubelet.root),
            "kubeconfig": str(self._kubeconfig),
            "cdi_dir": str(self._cdi),
            "state_dir": str(self._state),
            **({} if self._pod_uid is None else {"pod_uid": self._pod_uid}),
            **self._switches,
            "host_root": str(self.tree.root),
        }

    @property
    @override
    def sockets(self) -> list[Path]:
        return [*self._registrations, *self._services]

    @property
    def _registrations(self) -> list[Path]:
        return [path for path in self._paths.plugins_registry_dir.iterdir() if path.is_socket()]

    @property
    def _services(self) -> list[Path]:
        directory = self._paths.plugins_dir / DRIVER
        return [path for path in directory.iterdir() if path.is_socket()] if directory.is_dir() else []

    @property
    def is_serving(self) -> bool:
        """Whether one of the driver's sockets for calls answers."""
        return any(map(answers, self._services))

    # -- what is seen --------------------------------------------------------------------------------------------------

    @override
    async def _wrong(self) -> str | None:
        registrations, services = (sum(map(answers, each)) for each in (self._registrations, self._services))
        if registrations != 1 or services != 1:
            return f"{registrations} sockets for registration answer, and {services} for calls"
        try:
            registered, connected = self.kubelet.registered().get(DRIVER, []), self.kubelet.connected(DRIVER)
        except ScenarioError:
            return "the kubelet does not run"
        if len(registered) != 1 or connected != registered:
            return f"registered are {registered}, and connected are {connected}"
        return self._differs()

    def _differs(self) -> str | None:
        """Return what is not in the slices as the hardware is; None: all is."""
        slices = [
            each
            for each in self.server.api.store.all(_SLICES, "", lambda _: True)
            if (each["spec"]["driver"], each["spec"]["pool"]["name"]) == (DRIVER, NODE)
        ]
        pools = {(each["spec"]["pool"]["generation"], each["spec"]["pool"]["resourceSliceCount"]) for each in slices}
        if len(pools) != 1 or next(iter(pools))[1] != len(slices):
            return f"the pool is not complete: {len(slices)} slices with generation and count {sorted(pools)}"
        listed = {
            device["name"]: not device.get("taints") for each in slices for device in each["spec"].get("devices", ())
        }
        says_sick = "DRADeviceTaints" in self.server.api.profile.gates  # else a sick device must not be offered
        true = {name: is_well for name, is_well in self.hardware.items() if is_well or says_sick}
        withheld = self.judge.owed_devices  # for as long as rule 3 lets them
        wrong = {
            name: (listed.get(name), true.get(name))
            for name in sorted({*listed, *true} - withheld)
            if listed.get(name) != true.get(name)
        }
        return f"devices are published otherwise than they are (published, true): {wrong}" if wrong else None

    @override
    def _hear(self, said: dict[str, Any]) -> None:
        about = said["claim"], said["request"], said["number"], said["ids"]
        if said["hook"] == "allocate":
            self.judge.allocated(*about, is_recorded=said["is_recorded"])
            return
        self.judge.counted(said["claim"], said["request"], said["ids"], said["calls"], hook=said["hook"])
        if said["has_failed"]:
            return
        if said["hook"] == "prepare_container":
            self.judge.pre_started(*about)
        else:
            self.judge.released(*about)

    # -- cards ---------------------------------------------------------------------------------------------------------

    @override
    def _add_card(self, card: int) -> None:
        super()._add_card(card)
        self._nodes[card] = card_node(card)
        self.tree.link(link_of(card), card_node(card))

    @override
    def _remove_card(self, card: int) -> None:
        self.tree.remove_node(link_of(card))
        self.tree.remove_node(self._nodes.pop(card))

    def renumber(self, name: str) -> None:
        """Give a card another device node, to which its link then leads."""
        card = self.cards[name]
        self._numbers_of_nodes += 1
        node = card_node(self._numbers_of_nodes)
        self.tree.add_node(node, self._numbers_of_nodes)
        self.tree.link(link_of(card), node)
        self.tree.remove_node(self._nodes[card])
        self._nodes[card] = node
        self.causes.add("a toy has another node")

    def _outdated(self) -> list[str]:
        """Return what the CDI specs of prepared claims have of nodes that the toys do not have any more."""
        now = {name: self._nodes[card] for name, card in self.cards.items()}
        return [text for uid in self.settled_claims for text in self.judge.outdated(uid, self.files.nodes(uid), now)]

    def told(self, event: common.Event) -> None:
        """Judge what the kubelet has just seen."""
        if isinstance(event, events.UnprepareRequested):
            for uid in event.claims:
                self.judge.leaving(uid)
        elif isinstance(event, events.PrepareRequested):
            self.heard()
            for uid in event.claims:
                self.judge.asked(uid)
        elif isinstance(event, events.PrepareAnswered):
            self.heard()
            for uid, devices in event.devices.items():
                if uid not in event.errors:
                    self._prepared(uid, devices)

    def _prepared(self, uid: str, devices: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
        self._broken_specs.discard(uid)
        self.judge.prepared(uid, devices, self.files.environment(uid))

    # -- the scheduler and the API server ------------------------------------------------------------------------------

    def free(self) -> list[str]:
        """Return the healthy devices that no claim in the API server has."""
        taken = {
            result["device"]
            for claim in self.server.api.store.all(_CLAIMS, "", lambda _: True)
            for result in claim["status"]["allocation"]["devices"]["results"]
        }
        return sorted(name for name in self.toys if self.hardware[name] and name not in taken)

    def schedule(self, wanted: Sequence[Mapping[str, tuple[str, ...]]]) -> DraPod:
        """Make a pod with one claim for each mapping from requests to devices, as if the scheduler had chosen them."""
        names = [f"claim{next(self._numbers)}" for _ in wanted]
        pod = DraPod(claims={name: name for name in names}, name=f"pod{next(self._numbers)}")
        for name, requests in zip(names, wanted, strict=True):
            item = {**objects.claim(name, requests=requests), "status": self._status(pod, requests)}
            made = self.server.api.store.create(_CLAIMS, "default", item)
            self.judge.allocated_by_scheduler(made["metadata"]["uid"], name, requests)
        self.pods[pod.uid] = pod
        return pod

    def reschedule(self, pod: DraPod, wanted: Sequence[Mapping[str, tuple[str, ...]]]) -> DraPod:
        """Make a pod with the claims of one that is gone, to which the scheduler has allocated these devices."""
        successor = DraPod(claims=pod.claims, name=f"pod{next(self._numbers)}")
        for name, requests in zip(pod.claims, wanted, strict=True):
            item = self.server.api.store.get(_CLAIMS, "default", name)
            item["spec"] = objects.claim(name, requests=requests)["spec"]
            item["status"] = self._status(successor, requests)
            self.server.api.store.replace(_CLAIMS, "default", name, item)
            self.judge.reallocated(item["metadata"]["uid"], requests)
        self.pods[successor.uid] = successor
        return successor

    @staticmethod
    def _status(pod: DraPod, requests: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        results = [
            objects.result(DRIVER, device, request=request)
            for request, devices in requests.items()
            for device in devices
        ]
        return {"allocation": objects.allocation(results), "reservedFor": objects.reserved(pod)}

    def claim_of(self, name: str) -> str:
        """Return a claim's UID."""
        return next(uid for uid, life in self.judge.lives.items() if life.name == name and " " not in uid)

    def life_of(self, name: str) -> Life:
        """Return what was seen of a claim."""
        return self.judge.lives[self.claim_of(name)]

    def forget_claims(self, pod: DraPod) -> None:
        """Delete the claims of a pod in the API."""
        for name in pod.claims:
            with contextlib.suppress(ApiRefused):
                self.server.api.store.delete(_CLAIMS, "default", name)

    # -- pods ----------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[DraPod]:
        """The pods that are to live."""
        return [pod for uid, pod in self.pods.items() if uid not in self.stopping]

    @property
    def settled_claims(self) -> list[str]:
        """The UIDs of claims that are prepared, and that nobody has damaged."""
        return [
            uid
            for uid, life in self.judge.lives.items()
            if life.answer is not None and not life.may_go and not life.is_damaged and uid not in self._broken_specs
        ]

    async def start_pod(self, pod: DraPod) -> bool:
        """Have the kubelet start a pod, for the first time or again; return whether it could."""
        uids = [self.claim_of(name) for name in pod.claims]
        devices = {device for uid in uids for device in self.judge.lives[uid].devices}
        others = {other for uid in uids for other in self.judge.begun(self.judge.lives[uid].devices, beside=uid)}
        held = any(map(self.files.of, others))  # before the call: they may be undone just after the refusal
        try:
            await self.kubelet.start_pod(pod)
        except PodStartError as error:
            self.heard()
            causes = self.causes | {f"{name} is not well" for name in devices if not self.hardware.get(name)}
            self.judge.refused(str(error), causes=sorted(causes | ({"another claim has it"} if held else set())))
            return False
        except ScenarioError:
            return False  # there is no kubelet
        return True

    async def stop_pod(self, pod: DraPod) -> bool:
        """Have the kubelet end a pod, and delete its claims if it could."""
        self.stopping.add(pod.uid)
        uids = [self.claim_of(name) for name in pod.claims]
        for uid in uids:
            self.judge.leaving(uid)
            self.judge.lives[uid].undoing += 1
        began = time.monotonic()
        try:
            await self.kubelet.stop_pod(pod)
        except PodStopError as error:
            self.judge.refused(str(error), causes=sorted(self.causes))
            return False
        except ScenarioError:
            return False
        finally:
            for uid in uids:
                self.judge.lives[uid].undoing -= 1
            if self.pid is not None and self.causes.isdisjoint({FROZEN, SLOW_DISK}):  # writes wait for one another
                self.judge.answered(time.monotonic() - began, noise=self.noise)
        self.heard()
        for uid in uids:
            self.judge.unprepared(uid)
        self.forget_claims(pod)
        self._forget_pod(pod)
        return True

    def vanish(self, pod: DraPod, *, with_claims: bool = True) -> None:
        """Delete a pod by force, and its claims: the kubelet or the driver must find out."""
        for name in pod.claims:
            self.judge.leaving(self.claim_of(name))
        if with_claims:
            self.forget_claims(pod)
        self._forget_pod(pod)
        self.kubelet.delete_pod(pod)

    def _forget_pod(self, pod: DraPod) -> None:
        self.pods.pop(pod.uid, None)
        self.stopping.discard(pod.uid)

    async def forget_all(self, keeping: DraPod | None = None) -> None:
        """Have the kubelet lose its checkpoint: no claim of before will ever be unprepared by it.

        Args:
            keeping: A pod whose claims stay in the API; it ends as all others.
        """
        self.causes.add("the kubelet was restarted")
        with contextlib.suppress(ScenarioError):
            await self.kubelet.crash()
            for pod in list(self.pods.values()):
                self.vanish(pod, with_claims=pod is not keeping)
            self.kubelet.checkpoint.unlink(missing_ok=True)
        await self.kubelet.start()

    # -- calls without a kubelet ---------------------------------------------------------------------------------------

    async def call(self, *claims: ClaimEntry, unprepare: bool = False) -> dict[str, str]:
        """Call the driver as a kubelet would; return the errors by UID, and judge what it answers."""
        path = next(filter(answers, self._services), None)
        if path is None:
            return {}
        connection = DriverConnection(str(path), "v1.DRAPlugin")
        try:
            if unprepare:
                for claim in claims:
                    self.judge.leaving(claim.uid)
                return await connection.unprepare(claims, CALL_SECONDS)
            for claim in claims:
                self.judge.asked(claim.uid)
            found = await connection.prepare(claims, CALL_SECONDS)
        except CallError:
            return {}
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()
        self.heard()
        for uid, (devices, error) in found.items():
            if not error:
                self._prepared(uid, [_seen(device) for device in devices])
        return {uid: error for uid, (_, error) in found.items()}

    def entry(self, uid: str) -> ClaimEntry:
        """Return a claim as a call has it."""
        return ClaimEntry(namespace="default", name=self.judge.lives[uid].name, uid=uid)

    # -- the process and its files -------------------------------------------------------------------------------------

    def be_new_pod(self) -> None:
        """Let the next process be of another pod of the driver's DaemonSet."""
        self._pod_uid = self._new_uid(self.rng)

    async def reboot(self) -> None:
        """Let the node boot again: the driver and the kubelet start anew, and pods get new sandboxes."""
        await self.kill()
        self.tree.boot(self.rng)
        self.judge.rebooted()
        self.causes.add("the kubelet was restarted")
        await self.kubelet.restart()

    def damage_record(self) -> str | None:
        """Damage what the driver remembers of a claim, and return the claim's UID. A copy of it makes that good."""
        uid = self._victim()
        if uid is not None:
            self.judge.lives[uid].is_damaged = not self.files.has_copy(uid)
            damage(self.files.record(uid), self.rng)
        return uid

    def damage_spec(self) -> str | None:
        """Damage the CDI spec of a claim, and return the claim's UID. The next Prepare must write it again."""
        uid = self._victim()
        if uid is not None:
            self._broken_specs.add(uid)
            damage(self.files.spec(uid), self.rng)
        return uid

    def _victim(self) -> str | None:
        found = [
            uid for uid in self.settled_claims if self.files.record(uid).exists() and self.files.spec(uid).exists()
        ]
        return self.rng.choice(found) if found else None

    # -- peace ---------------------------------------------------------------------------------------------------------

    @override
    async def settle(self) -> None:
        """End all disturbances, judge how soon all is well, and have the kubelet try again what was refused."""
        self.server.faults.clear()
        self.kubelet.faults.clear()
        if not self.kubelet.is_running:
            await self.kubelet.start()
        await super().settle()
        if self.judge.violations:
            return
        for pod in list(self.pods.values()):
            if pod.uid in self.stopping or not await self.start_pod(pod):
                await self.stop_pod(pod)
        free = self.free()
        if free:
            await self.start_pod(self.schedule([{"r0": (self.rng.choice(free),)}]))
        for uid in self.settled_claims:
            self.judge.resolves(uid, self.files.environment(uid))

    @override
    async def _judge_peace(self, saved_seconds: float) -> None:
        """Judge the releases that are owed after an Unprepare, and what is left of such claims."""
        with anyio.move_on_after(RELEASE_SECONDS + self.noise):
            while self.judge.owed_after_unprepare:
                await self._news.wait()
        if owed := self.judge.owed_after_unprepare:
            self.judge.broken(3, f"{RELEASE_SECONDS:g} s of peace have released none of {owed[:3]} ({len(owed)})")
        until = time.monotonic() + saved_seconds
        while outdated := self._outdated():
            if time.monotonic() >= until:
                self.judge.broken(2, f"{saved_seconds:.1f} s after all disturbances ended, {outdated[:3]}")
                return
            await anyio.sleep(0.05)
        while left := [name for uid in self.judge.unprepared_claims for name in self.files.of(uid)]:
            if time.monotonic() >= until:
                self.judge.broken(7, f"claims were unprepared and released, and left {left[:3]}")
                return
            await anyio.sleep(0.05)

    @override
    async def end(self) -> None:
        """End all pods, wait until all is released, stop the driver, and judge what is left."""
        await self.settle()
        for pod in list(self.pods.values()):
            await self.stop_pod(pod)
        with anyio.move_on_after(CLEAN_SECONDS):
            while self.judge.lost:
                await self._news.wait()
        if lost := self.judge.lost:
            self.judge.broken(3, f"{len(lost)} requests were never released, such as {lost[:3]}")
        await self.terminate()
        (self._toys / CLOCK).unlink(missing_ok=True)
        await self.start()  # it cleans up what killed ones have left
        await self.settle()
        for pod in list(self.pods.values()):
            await self.stop_pod(pod)
        with anyio.move_on_after(CLEAN_SECONDS):
            while self.files.left():  # noqa: ASYNC110 - another process's files
                await anyio.sleep(0.05)
        await self.terminate()
        if left := [path.name for path in self.sockets] + self.files.left():
            self.judge.broken(7, f"after its end there are {sorted(left)}")

    @staticmethod
    def _new_uid(rng: random.Random) -> str:
        return f"{rng.getrandbits(32):08x}-0000-4000-8000-{rng.getrandbits(48):012x}"


def _seen(device: PreparedDevice) -> tuple[str, str, tuple[str, ...]]:
    return device.pool, device.device, device.cdi_ids


def stranger() -> ClaimEntry:
    """Return a claim that there never was."""
    uid = str(uuid4())
    return ClaimEntry(namespace="default", name=f"stranger-{uid[:8]}", uid=uid)


@asynccontextmanager
async def node_of(directory: Path, seed: int, environment: Mapping[str, str] | None = None) -> AsyncGenerator[DraWorld]:
    """Have a node with an API server and a kubelet, of a version that the seed chooses."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    profile = rng.choice([*PROFILES])
    found: list[DraWorld] = []

    def tell(event: common.Event) -> None:
        for world in found:
            world.told(event)

    async with SimulatedApiServer(profile) as server:
        await server.ask("POST", "/api/v1/nodes", objects.node(NODE))
        async with SimulatedDraKubelet(
            server.ask,
            directory / "k",
            node=NODE,
            profile=profile,
            timings=QUICK,
            seed=seed,
            listener=tell,
        ) as kubelet:
            found.append(DraWorld(directory, kubelet, server, rng, environment))
            yield found[0]
