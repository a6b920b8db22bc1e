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

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..model.devices import Device

_WAY_OUT = "delete the pod"


@final
@attrs.frozen(kw_only=True)
class Given:
    """What one device was when a container was given it. False if nothing can be compared later.

    Attributes:
        nodes: Paths of its device nodes on the node, as the answer names them: a link stays a link.
        identity: As `Device.identity`; "": the backend did not say.
    """

    __repr__ = shown

    nodes: tuple[str, ...] = ()
    identity: str = ""

    @classmethod
    def of(cls, device: Device, named: Collection[str]) -> Given:
        """Return what was given of a device.

        Args:
            device: The device.
            named: The paths of all nodes that the answer names. What the device has in a CDI file is not among them:
                that file is written again.
        """
        nodes = tuple([node.host_path for node in device.edits.device_nodes if node.host_path in named])
        return cls(nodes=nodes, identity=device.identity)

    @classmethod
    def of_json(cls, saved: Any) -> Given:
        """Return what `as_json` made.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of the wrong type.
        """
        return cls(nodes=tuple([str(path) for path in saved["nodes"]]), identity=str(saved["identity"]))

    def as_json(self) -> dict[str, Any]:
        """Return it as it is saved; empty if it is false."""
        return {"nodes": list(self.nodes), "identity": self.identity} if self else {}

    def __bool__(self) -> bool:
        return bool(self.nodes or self.identity)

    def is_other_hardware(self, device: Device) -> bool:
        """Return whether the device's id stands for another physical thing now."""
        return bool(self.identity and device.identity) and self.identity != device.identity

    def fault(self, device: Device) -> str | None:
        """Return why a container must not start with this answer any more, for the pod's author; None: it may."""
        if self.is_other_hardware(device):
            return f"is other hardware now ({device.identity}); the pod was given {self.identity}; {_WAY_OUT}"
        now = tuple([node.host_path for node in device.edits.device_nodes])
        if not (lost := [path for path in self.nodes if path not in now]):
            return None
        new = [path for path in now if path not in self.nodes]
        is_now = f"is {', '.join(new)} now" if new else "has another node now"
        return f"{is_now}; the pod was given {', '.join(lost)}; {_WAY_OUT}"
