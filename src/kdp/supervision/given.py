"""`Given`: what an answer that outlives its call names of a device, and whether the device is still that.

The kubelet keeps Allocate's reply and gives it again at each start of the container, without asking. Meanwhile numbers
move: an adapter comes back as another node, and its old node is another pod's. So what was given is remembered for as
long as a pod holds the device, and a device that is something else now is Unhealthy with the reason.

Major and minor number are not compared: the runtime reads them at each start, and a driver whose major number is
dynamic has another one after each reboot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import attrs

from ..startup import shown
from .conditions import OUTDATED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ..model.conditions import Condition
    from ..model.devices import Device

_WAY_OUT = "delete the pod"


@final
@attrs.frozen(kw_only=True)
class Given:
    """What one device was when a container was given it.

    Attributes:
        nodes: Paths of its device nodes on the node, as the answer names them: a link stays a link.
        identity: As `Device.identity`; "": the backend did not say.
        shared: Paths of its nodes that other devices had as well, as seats of one node have.
        reach: What a container can touch with it and no other container may, each with the ids of some devices that
            share it; see `kdp.supervision.holdings`.
        boot_id: The boot of the node in which the kernel's numbers in ``reach`` mean something; "": unknown.
        shares_identity: Whether the devices that share its things had its identity, as the parts of a card have.
    """

    __repr__ = shown

    nodes: tuple[str, ...] = ()
    identity: str = ""
    shared: tuple[str, ...] = ()
    reach: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, "tuple[str, ...]"], hash=False)
    boot_id: str = ""
    shares_identity: bool = False

    @classmethod
    def of(
        cls,
        device: Device,
        named: Collection[str],
        shared: Collection[str] = (),
        *,
        reach: Mapping[str, tuple[str, ...]] | None = None,
        boot_id: str = "",
        shares_identity: bool = False,
    ) -> Given:
        """Return what was given of a device.

        Args:
            device: The device.
            named: The paths of all nodes that the answer names. What the device has in a CDI file is not among them:
                that file is written again.
            shared: The paths of all nodes that several devices have.
            reach: The attribute.
            boot_id: The attribute.
            shares_identity: The attribute.
        """
        paths = _paths(device)
        return cls(
            nodes=tuple([path for path in paths if path in named]),
            identity=device.identity,
            shared=tuple([path for path in paths if path in shared]),
            reach={} if reach is None else reach,
            boot_id=boot_id,
            shares_identity=shares_identity,
        )

    @classmethod
    def of_json(cls, saved: Any) -> Given:
        """Return what `as_json` made.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of the wrong type.
        """
        nodes, shared = (tuple([str(path) for path in paths]) for paths in (saved["nodes"], saved.get("shared", ())))
        # Older records have no reach: a node that no other device had was the container's alone.
        reach = saved.get("reach", {path: () for path in nodes if path not in shared})
        return cls(
            nodes=nodes,
            identity=str(saved["identity"]),
            shared=shared,
            reach={str(thing): tuple(map(str, ids)) for thing, ids in reach.items()},
            boot_id=str(saved.get("boot_id", "")),
            shares_identity=bool(saved.get("shares_identity", False)),
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as it is saved."""
        return {
            "nodes": list(self.nodes),
            "identity": self.identity,
            "shared": list(self.shared),
            "reach": {thing: list(ids) for thing, ids in self.reach.items()},
            "boot_id": self.boot_id,
            **({"shares_identity": True} if self.shares_identity else {}),
        }

    def is_other_hardware(self, device: Device) -> bool:
        """Return whether the device's id stands for another physical thing now."""
        if not self.identity or not device.identity or self.identity == device.identity:
            return False
        # An older record may have a part of the identity that the backend gives today.
        return bool(self.boot_id) or self.identity not in device.identity

    def fault(self, device: Device) -> str | None:
        """Return why a container must not start with this answer any more, for the pod's author; None: it may."""
        if self.is_other_hardware(device):
            return f"is other hardware now ({device.identity}); the pod was given {self.identity}; {_WAY_OUT}"
        now = _paths(device)
        if not device.is_described or not (lost := [path for path in self.nodes if path not in now]):
            return None
        new = [path for path in now if path not in self.nodes]
        is_now = f"is {', '.join(new)} now" if new else "has another node now"
        return f"{is_now}; the pod was given {', '.join(lost)}; {_WAY_OUT}"

    def outdated(self, device: Device, now: float) -> Condition | None:
        """Return `fault` as a condition of the device."""
        fault = self.fault(device)
        return None if fault is None else OUTDATED.because(fault, now)

    def heirs(
        self, paths: Iterable[str], owners: Mapping[str, Device], *, is_gone: bool = True
    ) -> Iterator[tuple[str, Device]]:
        """Find nodes of this device that other hardware has now, each with the device that has it.

        Args:
            paths: The paths of nodes that the device has no longer.
            owners: As `owners_of`.
            is_gone: Whether the device itself is gone. Then a node that others had as well is still theirs. If it is
                there and has another node, its hardware has moved, or the others had the node only while it did.
        """
        for path in paths:
            owner = owners.get(path)
            if owner is None or (is_gone and path in self.shared):
                continue
            if not self.identity or owner.identity != self.identity:
                yield path, owner


def owners_of(devices: Iterable[Device]) -> dict[str, Device]:
    """Return the device that has each node, by the node's path."""
    return {path: device for device in devices for path in _paths(device)}


def _paths(device: Device) -> tuple[str, ...]:
    return tuple([node.host_path for node in device.edits.device_nodes])
