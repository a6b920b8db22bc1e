"""A node with cards that change their names while containers have them, for the property test of `holdings`.

The oracle knows the hardware alone: which card is in which slot, which kernel numbers lead to it, and what each
container can open now or at its next start. It does not know how kdp tells exclusive things from shared ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from types import ModuleType
from typing import Any, Final

import attrs

import kdp
from kdp.supervision.given import Given

DRIVER: Final = "card.example.com"
ONE: Final = "example.com/one"
TWO: Final = "example.com/two"
SLOTS: Final = 3
CONTROL: Final = "c 10:1"

OPERATIONS: Final = {
    "admit": 9,
    "end": 4,
    "rename": 2,
    "move to another resource": 2,
    "replace at the same slot": 2,
    "split": 2,
    "share": 2,
    "make whole": 2,
    "grow": 1,
    "unplug": 2,
    "plug": 3,
    "upgrade with other ids": 2,
    "restart": 2,
    "reboot": 1,
    "change of mode": 2,
    "kubelet restart": 2,
}
"""Each operation, and how often it is drawn."""


class BrokenError(AssertionError):
    """Two containers can touch one card, or a device is withheld for no reason."""


@attrs.define(slots=False)
class Card:
    """A card in a slot."""

    serial: str
    layout: str = "whole"
    count: int = 2


@attrs.define(eq=False)
class Container:
    """A living container, and all that the oracle knows of it."""

    name: tuple[str, str]
    given: Given
    card: Card
    serial: str
    layout: str
    numbers: frozenset[str]
    paths: frozenset[str]
    siblings: frozenset[str]
    units: int
    is_whole: bool
    is_claim: bool


@attrs.define(slots=False)
class World:
    """One life: draws operations, and judges each admission.

    Args:
        rule: The module under test.
        seed: Of the life.
        counts: How often each operation was played.
    """

    rule: ModuleType
    seed: int
    counts: Counter[str]
    slots: dict[int, Card] = attrs.field(factory=dict[int, Card])
    living: list[Container] = attrs.field(factory=list[Container])
    boot: int = 0
    serials: int = 0
    draw: random.Random = attrs.field(init=False)
    _nodes: dict[str, tuple[str, ...]] | None = None
    _devices: dict[tuple[str, str], tuple[kdp.Device, int]] | None = None
    _present: Any = None

    def __attrs_post_init__(self) -> None:
        self.draw = draw = random.Random(self.seed)  # noqa: S311 - a drawn life, no secret
        self.ids = draw.choice(["slot", "serial", "tag0"])
        self.names = draw.choice(["path", "link"])
        self.is_told = draw.random() < 0.7
        self.has_control = draw.random() < 0.6
        self.has_parts_of_their_own = draw.random() < 0.5
        self.has_groups = draw.random() < 0.2
        self.names_nodes = draw.random() < 0.7  # else a CDI file does, which is written again
        self.resource = ONE
        self.is_dra = False
        for slot in range(draw.randint(1, SLOTS)):
            self.slots[slot] = self._card(draw.choice(["whole", "whole", "parts", "replicas"]))

    def _card(self, layout: str) -> Card:
        self.serials += 1
        return Card(f"S{self.serials}", layout, self.draw.randint(1, 4))

    # -- the hardware --------------------------------------------------------------------------------------------------

    def _base(self, slot: int) -> str:
        card = self.slots[slot]
        return {"slot": f"card{slot}", "serial": card.serial}.get(self.ids, f"{self.ids}-{slot}")

    def _node(self, slot: int) -> str:
        if self.has_groups:
            return f"/dev/vfio/devices/vfio{slot}"
        return f"/dev/by-id/{self.slots[slot].serial}" if self.names == "link" else f"/dev/card{slot}"

    def nodes(self) -> dict[str, tuple[str, ...]]:
        """The things behind all paths that lead to something."""
        if self._nodes is None:
            self._nodes = self._nodes_now()
        return self._nodes

    def _nodes_now(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {"/dev/ctl": (CONTROL,)}
        for slot, card in self.slots.items():
            number = f"c 240:{slot}"
            found[f"/dev/card{slot}"] = found[f"/dev/by-id/{card.serial}"] = (number,)
            found[f"/dev/vfio/devices/vfio{slot}"] = (number, f"IOMMU group {slot // 2}")
            for part in range(card.count):
                found[f"/dev/part{slot}-{part}"] = (f"c 241:{slot * 16 + part}",)
        return found

    def devices(self) -> dict[tuple[str, str], tuple[kdp.Device, int]]:
        """What discover returns, by name, each with its slot."""
        if self._devices is None:
            self._devices = self._discover()
        return self._devices

    def _discover(self) -> dict[tuple[str, str], tuple[kdp.Device, int]]:
        found: dict[tuple[str, str], tuple[kdp.Device, int]] = {}
        for slot, card in self.slots.items():
            base, control = self._base(slot), ["/dev/ctl"] if self.has_control else []
            ids = {
                "whole": [base],
                "parts": [f"{base}-p{part}" for part in range(card.count)],
                "replicas": [f"{base}::{part}" for part in range(card.count)],
            }[card.layout]
            for part, device_id in enumerate(ids):
                own = [f"/dev/part{slot}-{part}"] if card.layout == "parts" and self.has_parts_of_their_own else []
                device = kdp.Device(
                    id=device_id,
                    unit=base,
                    identity=card.serial if self.is_told else "",
                    edits=kdp.ContainerEdits.of_node(self._node(slot), *own, *control),
                )
                found[DRIVER if self.is_dra else self.resource, device_id] = device, slot
        return found

    # -- kdp -----------------------------------------------------------------------------------------------------------

    def present(self) -> Any:
        """The devices as the rule sees them."""
        if self._present is None:
            self._present = self._present_now()
        return self._present

    def _present_now(self) -> Any:
        present = self.rule.Present()
        place = DRIVER if self.is_dra else self.resource
        present.add(
            [device for device, _ in self.devices().values()],
            nodes=self.nodes(),
            resource_of=lambda _: place,
            joined_env={},
        )
        return present

    def verdict(self) -> Any:
        """What the rule says now."""
        holdings = [self.rule.Holding(name=each.name, given=each.given) for each in self.living]
        present = self.present()
        nodes = self.nodes()
        present.look({p for each in self.living for p in each.given.reach if p[0] == "/"}, lambda p: nodes.get(p, ()))
        return self.rule.judge(present, holdings, boot_id=f"boot-{self.boot}")

    # -- the oracle ----------------------------------------------------------------------------------------------------

    def touched(self, container: Container) -> frozenset[str]:
        """The kernel's numbers that a container can open now, or at its next start; control nodes are everybody's."""
        nodes = self.nodes()
        now = {number for path in container.paths for number in nodes.get(path, ())}
        return (container.numbers | now) - {CONTROL}

    def _can_tell(self, container: Container, device: kdp.Device) -> bool:
        """Whether anything tells kdp that a device is of another card or layout than the container's."""
        own = {device_id for (_, device_id), (_, slot) in self.devices().items() if slot == self._slot_of(device)}
        return self.is_told or not own & container.siblings

    def _slot_of(self, device: kdp.Device) -> int:
        return next(slot for (_, device_id), (_, slot) in self.devices().items() if device_id == device.id)

    def check_admission(self, name: tuple[str, str], device: kdp.Device, slot: int) -> None:
        """Two containers touch one card only if they share it as discover listed it."""
        card, nodes = self.slots[slot], self.nodes()
        numbers = {number for node in device.edits.device_nodes for number in nodes[node.host_path]} - {CONTROL}
        for each in self.living:
            is_shared = (each.serial, each.layout) == (card.serial, card.layout) and each.name != name
            is_shared = is_shared and each.name[1] != device.id
            if numbers & self.touched(each) and not is_shared and self._can_tell(each, device):
                raise BrokenError(f"{name} is given away, and {each.name} can touch {numbers & self.touched(each)}")

    def check_listing(self) -> None:
        """No device is withheld for no reason, and each holder's own name stays Healthy while its card answers."""
        verdict, devices, nodes = self.verdict(), self.devices(), self.nodes()
        held = {each.name for each in self.living}
        for name in verdict.withheld.keys() - held:
            device, _ = devices[name]
            if not any(self._may_concern(each, device, nodes) for each in self.living):
                raise BrokenError(f"{name} is withheld, and no container touches it")
        for each in self.living:
            slot = next((slot for slot, card in self.slots.items() if card is each.card), None)
            if slot is None or each.name in devices or each.is_claim:
                continue
            own = [device for device, place in devices.values() if place == slot]
            paths = {node.host_path for device in own for node in device.edits.device_nodes}
            is_known = self.is_told or any(
                device.id.partition("::")[0] == each.name[1].partition("::")[0] for device in own
            )
            is_free = any(name in verdict.withheld for name, (_, place) in devices.items() if place == slot)
            needed = {path for path in each.given.reach if path[0] == "/"}
            if is_known and is_free and needed <= paths and each.name not in verdict.answering:
                raise BrokenError(f"{each.name} is held, its card answers, and it is not listed")
        for each in verdict.answering:
            [container] = [one for one in self.living if one.name == each]
            is_there = any(card.serial == container.serial for card in self.slots.values())
            if self.is_told and not is_there:
                raise BrokenError(f"{each} is listed Healthy, and its card is gone")

    def _may_concern(self, container: Container, device: kdp.Device, nodes: dict[str, tuple[str, ...]]) -> bool:
        numbers = {number for node in device.edits.device_nodes for number in nodes[node.host_path]}
        paths = {node.host_path for node in device.edits.device_nodes}
        if device.id.partition("::")[0] == container.name[1].partition("::")[0]:
            return True
        if (numbers - {CONTROL}) & self.touched(container) or (paths - {"/dev/ctl"}) & container.paths:
            return True
        # With one card, nothing tells that a node is a control node, until a second card is beside the first.
        found = self.devices().get(container.name)
        is_there = found is not None and container.paths <= {node.host_path for node in found[0].edits.device_nodes}
        is_same = is_there and found is not None and self.slots[found[1]] is container.card
        return CONTROL in numbers and container.units == 1 and not is_same

    # -- the life ------------------------------------------------------------------------------------------------------

    def play(self, operations: int) -> None:
        """Live, and end: nothing stays withheld."""
        for _ in range(operations):
            [what] = self.draw.choices(list(OPERATIONS), list(OPERATIONS.values()))
            if self._take(what):
                self.counts[what] += 1
            if what not in ("admit", "end", "kubelet restart"):
                self._nodes = self._devices = self._present = None
            self.check_listing()
        self.living.clear()
        if self.verdict().withheld:
            raise BrokenError("a device is withheld for ever")

    def _take(self, what: str) -> bool:
        match what:
            case "admit":
                return self._admit()
            case "end" if self.living:
                self.living.remove(self.draw.choice(self.living))
            case "rename" | "upgrade with other ids":
                self.ids = self.draw.choice([each for each in ("slot", "serial", "tag0", "tag1") if each != self.ids])
                self.names = self.draw.choice(["path", "link"])
                if what != "rename":
                    self._restart()
            case "move to another resource":
                self.resource = TWO if self.resource == ONE else ONE
            case "replace at the same slot" if self.slots:
                slot = self.draw.choice(list(self.slots))
                self.slots[slot] = self._card(self.slots[slot].layout)
            case "split":
                return self._lay_out("parts")
            case "share":
                return self._lay_out("replicas")
            case "make whole":
                return self._lay_out("whole")
            case "grow":
                return self._grow()
            case "unplug" if self.slots:
                del self.slots[self.draw.choice(list(self.slots))]
            case "plug" if len(self.slots) < SLOTS:
                free = [slot for slot in range(SLOTS) if slot not in self.slots]
                self.slots[self.draw.choice(free)] = self._card(self.draw.choice(["whole", "parts", "replicas"]))
            case "restart":
                self._restart()
            case "reboot":
                self._restart()
                self.boot += 1
                for each in self.living:
                    each.numbers = frozenset()
            case "change of mode":
                self.is_dra = not self.is_dra
            case "kubelet restart":
                pass  # `check_listing` asks what the kubelet asks then
            case _:
                return False
        return True

    def _restart(self) -> None:
        for each in self.living:
            each.given = Given.of_json(json.loads(json.dumps(each.given.as_json())))

    def _lay_out(self, layout: str) -> bool:
        cards = [card for card in self.slots.values() if card.layout != layout]
        if not cards:
            return False
        card = self.draw.choice(cards)
        card.layout = layout
        return True

    def _grow(self) -> bool:
        cards = [card for card in self.slots.values() if card.layout == "replicas" and card.count < 8]
        if cards:
            self.draw.choice(cards).count += 1
        return bool(cards)

    def _admit(self) -> bool:
        devices, verdict = self.devices(), self.verdict()
        held = {each.name for each in self.living}
        free = [name for name in devices if name not in held]
        self.draw.shuffle(free)
        for name in free:
            if name in verdict.withheld:
                continue
            device, slot = devices[name]
            self.check_admission(name, device, slot)
            card, nodes = self.slots[slot], self.nodes()
            paths = [node.host_path for node in device.edits.device_nodes] if self.names_nodes else []
            given = self.present().given(name, device, {}, named=paths, boot_id=f"boot-{self.boot}")
            self.living.append(
                Container(
                    name=name,
                    given=given,
                    card=card,
                    serial=card.serial,
                    layout=card.layout,
                    numbers=frozenset(each for node in device.edits.device_nodes for each in nodes[node.host_path]),
                    paths=frozenset(node.host_path for node in device.edits.device_nodes),
                    siblings=frozenset(device_id for (_, device_id), (_, place) in devices.items() if place == slot),
                    units=len(self.slots),
                    is_whole=card.layout == "whole",
                    is_claim=self.is_dra,
                )
            )
            return True
        return False


def lives(rule: ModuleType, count: int, operations: int, *, first: int = 0) -> Counter[str]:
    """Play lives, and return how often each operation was played.

    Raises:
        BrokenError: One broke a rule; the text has its seed.
    """
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        world = World(rule, seed, counts)
        try:
            world.play(operations)
        except BrokenError as error:
            raise BrokenError(f"seed {seed}: {error}") from None
    return counts
