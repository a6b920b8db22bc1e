"""`Given`: what an answer that outlives its call names of a device, and whether the device is still that.

The kubelet keeps Allocate's reply and gives it again at each start of the container, without asking. Meanwhile numbers
move: an adapter comes back as another node, and its old node is another pod's. So what was given is remembered for as
long as a pod holds the device, and a device that is something else now is Unhealthy with the reason.

Major and minor number are not compared: the runtime reads them at each start, and a driver whose major number is
dynamic has another one after each reboot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs

from ..startup import shown
from .conditions import HELD, OUTDATED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
    """

    __repr__ = shown

    nodes: tuple[str, ...] = ()
    identity: str = ""
    shared: tuple[str, ...] = ()

    @classmethod
    def of(cls, device: Device, named: Collection[str], shared: Collection[str] = ()) -> Given:
        """Return what was given of a device.

        Args:
            device: The device.
            named: The paths of all nodes that the answer names. What the device has in a CDI file is not among them:
                that file is written again.
            shared: The paths of all nodes that several devices have.
        """
        paths = _paths(device)
        return cls(
            nodes=tuple([path for path in paths if path in named]),
            identity=device.identity,
            shared=tuple([path for path in paths if path in shared]),
        )

    @classmethod
    def of_json(cls, saved: Any) -> Given:
        """Return what `as_json` made.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of the wrong type.
        """
        nodes, shared = (tuple([str(path) for path in paths]) for paths in (saved["nodes"], saved.get("shared", ())))
        return cls(nodes=nodes, identity=str(saved["identity"]), shared=shared)

    def as_json(self) -> dict[str, Any]:
        """Return it as it is saved."""
        return {"nodes": list(self.nodes), "identity": self.identity, "shared": list(self.shared)}

    def is_other_hardware(self, device: Device) -> bool:
        """Return whether the device's id stands for another physical thing now."""
        return bool(self.identity and device.identity) and self.identity != device.identity

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


def taken(devices: Sequence[Device], answers: Iterable[tuple[str, Given]], now: float) -> dict[str, Condition]:
    """Return the condition of each device whose node a pod holds under another name, by device id.

    That pod's container opens the node at its next start.

    Args:
        devices: The devices that there are now.
        answers: What pods have that live, each with the id of its device.
        now: The time.
    """
    today = {device.id: device for device in devices}
    described = {device.id for device in devices if device.is_described}
    lost: list[tuple[str, Given, list[str]]] = []
    for device_id, answer in answers:
        current = _paths(today[device_id]) if device_id in today else ()
        if paths := [path for path in answer.nodes if path not in current]:
            lost.append((device_id, answer, paths))
    owners = owners_of(devices) if lost else {}
    return {
        owner.id: HELD.because(
            f"is {path}, which a pod was given as {device_id}; delete the pod that holds {device_id}", now
        )
        for device_id, answer, paths in lost
        for path, owner in answer.heirs(paths, owners, is_gone=device_id not in described)
    }


def owners_of(devices: Iterable[Device]) -> dict[str, Device]:
    """Return the device that has each node, by the node's path."""
    return {path: device for device in devices for path in _paths(device)}


def _paths(device: Device) -> tuple[str, ...]:
    return tuple([node.host_path for node in device.edits.device_nodes])
