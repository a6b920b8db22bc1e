"""The inventory against a dict that remembers everything, and a mutant of each invariant of its head.

The message is read back with the generated code. Several streams follow it, each at its own pace.
"""

from __future__ import annotations

import random
import re
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

import kdp
from kdp.deviceplugin import inventory as real
from kdp.deviceplugin.wire import encode_device, worst_case_bytes
from kdp.errors import ListTooLargeError
from kdp.proto import deviceplugin_v1beta1_pb2 as pb

from ..mutants import Mutant, assert_killed, each_mutant, holds, live

Told = dict[str, tuple[str, tuple[int, ...]]]

LIFETIME = 20.0
"""Seconds of a tombstone here."""

IDS = [f"widget-{number}" for number in range(8)] + ["w" * 63, "überlang-" + "ß" * 50]
LIMITS = [real.MAX_LIST_BYTES, real.MAX_LIST_BYTES, 200, 330]


def decode(message: bytes) -> Told:
    """Read a list as the kubelet does, and insist that it names each device once."""
    told: Told = {}
    for device in pb.ListAndWatchResponse.FromString(message).devices:
        holds(1, device.ID not in told, f"{device.ID} is listed twice")
        told[device.ID] = device.health, tuple(node.ID for node in device.topology.nodes)
    return told


class Life(RuleBasedStateMachine):
    module: ClassVar[ModuleType] = real

    @initialize(max_bytes=st.sampled_from(LIMITS))
    def begin(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.now = 50.0
        self.inventory = self.module.Inventory(
            encode=encode_device, worst_case=worst_case_bytes, tombstone_seconds=LIFETIME, max_bytes=max_bytes
        )
        self.live: dict[str, kdp.Device] = {}
        self.dead: dict[str, tuple[float, kdp.Device]] = {}
        self.version: int | None = None
        self.streams: list[tuple[Any, list[float]]] = []

    # -- the model -----------------------------------------------------------------------------------------------------

    def expected(self, live: dict[str, kdp.Device], dead: dict[str, tuple[float, kdp.Device]]) -> Told:
        told = {i: ("Healthy" if d.health.is_healthy else "Unhealthy", d.numa_nodes) for i, d in live.items()}
        told |= {i: ("Unhealthy", d.numa_nodes) for i, (_, d) in dead.items()}
        all_have_one = all(d.numa_nodes for d in live.values())
        return {i: (health, nodes if all_have_one else ()) for i, (health, nodes) in told.items()}

    def worst(self, told: Told) -> int:
        """Bytes of this list if all in it were Unhealthy."""
        message = pb.ListAndWatchResponse()
        for device_id, (_, nodes) in told.items():
            device = message.devices.add(ID=device_id, health="Unhealthy")
            device.topology.nodes.extend([pb.NUMANode(ID=node) for node in nodes])
            if not nodes:
                device.ClearField("topology")
        return message.ByteSize()

    # -- events --------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 2**64 - 1), likely=st.sampled_from([0.0, 0.3, 0.7, 1.0]), numa=st.integers(0, 3))
    def discover(self, number: int, likely: float, numa: int) -> None:
        """Any devices, with or without nodes: all, none, or a mixture."""
        rng = random.Random(number)  # noqa: S311 - no secret
        devices = []
        for device_id in IDS:
            if rng.random() < likely:
                nodes = ([], [0], [1, 0])[min(2, rng.randrange(numa + 1))] if numa < 3 else [rng.randrange(64)]
                healthy = rng.random() < 0.6
                devices.append(
                    kdp.Device(
                        id=device_id,
                        health=kdp.Health.healthy() if healthy else kdp.Health.unhealthy(rng.choice("abc")),
                        numa_nodes=nodes,
                        handle=object(),
                    )
                )
        rng.shuffle(devices)
        self.update(devices)

    @rule(number=st.integers(0, 2**64 - 1), what=st.sampled_from(["handle", "reason", "env", "health", "numa", "same"]))
    def change_one(self, number: int, what: str) -> None:
        if not self.live:
            return
        rng = random.Random(number)  # noqa: S311 - no secret
        device = self.live[rng.choice(sorted(self.live))]
        match what:
            case "handle":
                device = attrs.evolve(device, handle=object())
            case "reason" if not device.health.is_healthy:
                device = attrs.evolve(device, health=kdp.Health.unhealthy(f"reason {number}"))
            case "env":
                device = attrs.evolve(device, edits=kdp.ContainerEdits(env={"N": str(number)}))
            case "health":
                healthy = device.health.is_healthy
                device = attrs.evolve(device, health=kdp.Health.unhealthy("x") if healthy else kdp.Health.healthy())
            case "numa":
                device = attrs.evolve(device, numa_nodes=rng.choice([(), (0,), (3,)]))
        self.update([*(d for i, d in self.live.items() if i != device.id), device])

    def update(self, devices: list[kdp.Device]) -> None:
        live = {device.id: device for device in devices}
        dead = {i: found for i, found in self.dead.items() if i not in live and found[0] > self.now}
        dead |= {i: (self.now + LIFETIME, d) for i, d in self.live.items() if i not in live}
        before = self.observed()
        try:
            change = self.inventory.update(devices, self.now)
        except ListTooLargeError as error:
            holds(4, self.observed() == before, "a refused list has left traces")
            told = self.expected(live, {})
            holds(5, self.worst(told) > self.max_bytes, "a list was refused that fits")
            prefix = {d.id: told[d.id] for d in devices[: error.fits]}
            holds(5, self.worst(prefix) <= self.max_bytes and error.fits < len(devices), f"{error.fits} fit, it says")
            return
        self.give_way(live, dead, list(before[1] or ()))
        self.take(live, dead, change, before)

    def give_way(
        self, live: dict[str, kdp.Device], dead: dict[str, tuple[float, kdp.Device]], order: list[str]
    ) -> None:
        """The oldest tombstones give way to what is there, and only as many as must."""
        for device_id in sorted(dead, key=lambda i: (dead[i][0], order.index(i))):
            if self.worst(self.expected(live, dead)) <= self.max_bytes:
                break
            del dead[device_id]

    def take(
        self,
        live: dict[str, kdp.Device],
        dead: dict[str, tuple[float, kdp.Device]],
        change: real.ListChange,
        before: tuple[Any, ...],
    ) -> None:
        told = decode(self.inventory.message)
        holds(5, self.worst(told) <= self.max_bytes, "it does not fit if all turn Unhealthy")
        gone = {i for i in (*self.live, *self.dead) if i not in live and i not in dead}
        holds(2, set(change.removed) == gone, f"removed are {change.removed}, but gone are {gone}")
        old = self.expected(self.live, self.dead)
        health = {i: d.health for i, d in self.live.items()}
        health |= {i: kdp.Health.unhealthy("the device is gone") for i in self.dead}
        self.live, self.dead = live, dead
        snapshot = self.inventory.snapshot
        missing = {*live, *dead} - snapshot.devices.keys()
        holds(2, not missing, f"{missing} are lost")
        changed = before[0] is None or self.expected(live, dead) != old
        holds(3, change.on_wire == changed, f"to be sent: {change.on_wire}; changed: {changed}")
        grown = snapshot.version - (before[0] or 0)
        holds(3, grown == int(changed), f"the version grew by {grown}; changed: {changed}")
        holds(1, told == self.expected(live, dead), f"the list says {told}, it is {self.expected(live, dead)}")
        for device_id, device in live.items():
            held = snapshot.devices[device_id]
            holds(3, held == device and held.handle is device.handle, f"{device_id} is not the newest")
        transitions = {t.device.id: (t.before, t.device.health) for t in change.transitions}
        now = {i: d.health for i, d in snapshot.devices.items()}
        said = {i: (health.get(i), h) for i, h in now.items() if health.get(i) != h}
        holds(1, transitions == said, f"changes of health are {said}, said was {transitions}")

    def observed(self) -> tuple[Any, ...]:
        snapshot = self.inventory.snapshot
        if snapshot is None:
            return None, None, None, frozenset(), None
        inventory = self.inventory
        message: bytes = inventory.message
        return snapshot.version, dict(snapshot.devices), message, inventory.tombstones, inventory.next_expiry

    @rule(ids=st.sets(st.sampled_from(IDS)))
    def forget(self, ids: set[str]) -> None:
        before = self.observed()
        change = self.inventory.forget(ids)
        if before[0] is None:
            holds(3, self.inventory.snapshot is None, "there is a list before there was any")
            return
        self.take(self.live, {i: d for i, d in self.dead.items() if i not in ids}, change, before)

    @rule(held=st.dictionaries(st.sampled_from([*IDS, "", "x" * 64]), st.sampled_from([(), (0,), (0, 1)])))
    def adopt(self, held: dict[str, tuple[int, ...]]) -> None:
        """Pods hold these devices: those that were never listed are, until their tombstones expire."""
        before = self.observed()
        change = self.inventory.adopt(held, self.now)
        if before[0] is None:
            holds(3, self.inventory.snapshot is None, "there is a list before there was any")
            return
        found = {i: kdp.Device(id=i, numa_nodes=held[i]) for i in held if i in IDS and i not in before[1]}
        dead = self.dead | {i: (self.now + LIFETIME, device) for i, device in found.items()}
        self.give_way(self.live, dead, [*before[1], *found])
        self.take(self.live, dead, change, before)

    @rule(ids=st.sets(st.sampled_from(IDS)))
    def hold(self, ids: set[str]) -> None:
        """Pods hold these devices: those of them that have vanished stay for longer."""
        before = self.observed()
        self.inventory.hold(ids, self.now)
        holds(3, self.observed()[:3] == before[:3], "what is held is no news")
        self.dead = {i: (self.now + LIFETIME if i in ids else until, d) for i, (until, d) in self.dead.items()}

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.06, 1.0, 19.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def stream_opens(self) -> None:
        self.streams.append((self.module.Cursor(), []))

    @rule(which=st.integers(0, 3))
    def stream_asks(self, which: int) -> None:
        if self.streams:
            self.ask(*self.streams[which % len(self.streams)])

    def ask(self, cursor: Any, sent: list[float]) -> float | None:
        """One look of a stream, as the servicer does it; return how long it would wait."""
        answer = self.inventory.next(cursor, self.now)
        snapshot = self.inventory.snapshot
        if snapshot is None or cursor.version == snapshot.version:
            holds(6, answer is None, f"{answer} although nothing is new")
            return None
        holds(6, answer is not None, "the last state is never sent")
        early = bool(sent) and self.now < sent[-1] + real.MIN_GAP - 1e-9
        if isinstance(answer, float):
            holds(6, early, f"wait {answer} s for nothing")
            holds(6, abs(self.now + answer - sent[-1] - real.MIN_GAP) < 1e-6, f"wait {answer} s")
            return answer
        holds(6, not early, f"only {self.now - sent[-1:][0] if sent else 0} s since the last list")
        holds(6, answer is snapshot, "not the newest state")
        cursor.version, cursor.sent_at = answer.version, self.now
        sent.append(self.now)
        return None

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def tombstones_are_known(self) -> None:
        if hasattr(self, "inventory"):
            holds(2, self.inventory.tombstones == self.dead.keys(), f"{self.inventory.tombstones} of {self.dead}")
            expiry = min((until for until, _ in self.dead.values()), default=None)
            holds(2, self.inventory.next_expiry == expiry, "the next expiry is another one")

    @override
    def teardown(self) -> None:
        """Each stream has the last state soon, whatever it has seen before."""
        for cursor, sent in getattr(self, "streams", ()):
            for _ in range(4):
                wait = self.ask(cursor, sent)
                self.now += wait or 0.0
            snapshot = self.inventory.snapshot
            holds(6, snapshot is None or cursor.version == snapshot.version, "the last state did not come")


def run(*, examples: int, module: ModuleType = real, number: int = 0) -> None:
    live(Life, examples=examples, steps=40, number=number, shrinks=module is real, module=module)


def test_the_inventory_equals_the_model() -> None:
    run(examples=150)


MUTANTS = [
    Mutant(
        1,
        "topology of some",
        "lost_by = _topology_lost_by(table, tombstones)",
        "lost_by = None",
    ),
    Mutant(1, "a vanished device stays Healthy", "attrs.evolve(device, health=health)", "device"),
    Mutant(2, "what vanishes is dropped", "            if until > now:\n", "            if False:\n"),
    Mutant(2, "what is there is forgotten", "self._tombstones.keys() & set(ids)", "self._table.keys() & set(ids)"),
    Mutant(
        2,
        "what a pod holds goes all the same",
        "                self._tombstones[device_id] = now + self._tombstone_seconds\n",
        "                pass\n",
    ),
    Mutant(2, "what vanished before is not listed", "in held if device_id not in", "in held if device_id in"),
    Mutant(2, "a tombstone never ends", "            if until > now:\n", "            if True:\n"),
    Mutant(
        3,
        "a reason is news",
        "on_wire = version == 0 or bool(pieces or removed)",
        "on_wire = version == 0 or bool(pieces or removed or transitions)",
    ),
    Mutant(3, "equal bytes are news", "if piece != self._pieces.get(device_id):", "if True:"),
    Mutant(3, "what leaves is no news", "bool(pieces or removed)", "bool(pieces)"),
    Mutant(
        3,
        "a new handle is not taken",
        "        self.snapshot = ListSnapshot(version, MappingProxyType(table))\n",
        "        self.snapshot = ListSnapshot(version, MappingProxyType(table)) if on_wire else self.snapshot\n",
    ),
    Mutant(
        4,
        "a refused list is kept",
        "            raise self._too_large(table, worst, total)\n",
        (
            "            self.snapshot = ListSnapshot(1, MappingProxyType(table))\n            raise "
            "self._too_large(table, worst, total)\n"
        ),
    ),
    Mutant(5, "only the list of now fits", "self._worst_case(piece, table[device_id].health.is_healthy)", "len(piece)"),
    Mutant(5, "the sizes of what left are not taken off", "(*worst, *removed)", "worst"),
    Mutant(6, "no gap", "return snapshot if wait <= 0 else wait", "return snapshot"),
    Mutant(6, "a gap before the first", 'sent_at: float = float("-inf")', "sent_at: float = 49.99"),
    Mutant(
        6, "a burst's end is lost", "return snapshot if wait <= 0 else wait", "return snapshot if wait <= 0 else None"
    ),
    Mutant(6, "only one list for each stream", "snapshot.version == cursor.version:", "cursor.version is not None:"),
]


@each_mutant(MUTANTS)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    module = mutant.load("kdp.deviceplugin.inventory")
    assert_killed(mutant, (partial(run, examples=30, module=module, number=number) for number in range(60)))


def test_each_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(range(1, 7))
    assert sorted(re.findall(r"^(\d)\. ", real.__doc__ or "", re.MULTILINE)) == list("123456")
