"""`DraBackendSubject`: a vendor's class under kdp's own `DraDriver`, in this process.

It speaks to the API server over HTTP, as on a node.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from kdp.cluster.client import KubeApi
from kdp.dra.driver import DraDriver
from kdp.dra.names import device_name
from kdp.dra.options import DriverOptions
from kdp.model.backend import DeviceBackend
from kdp.model.devices import Device

from ..checks import NotApplicable
from ..in_process import Control, InProcess, after, before, derive
from ..instance import Instance, Levers, SharedLevers
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

_NO_QUARANTINE = {"flaps": None}
"""The kit flips devices more often than any that is worth to be offered."""


@attrs.define(kw_only=True, eq=False)
class _Hardware(Control):
    """What the kit sees of a backend, and does to it.

    Attributes:
        can_jam: Whether the backend has a hook that could refuse to give hardware back.
        allocations: Number of calls of the backend's own allocate. `None` if it has none.
        ids: The backend's ids of the devices, by their names in the slices.
    """

    can_jam: bool
    allocations: int | None
    ids: dict[str, str] = attrs.field(factory=dict[str, str])
    is_spoiled: bool = False
    is_jammed: bool = False

    @classmethod
    def of(cls, backend: DeviceBackend) -> _Hardware:
        """Put the kit's hooks around the backend's."""
        vendors = type(backend)
        unused = backend.unused_hooks
        allocates = vendors.allocate is not DeviceBackend.allocate and "allocate" not in unused
        releases = vendors.released is not DeviceBackend.released and "released" not in unused
        made = cls(can_jam=releases, allocations=0 if allocates else None)
        hooks: dict[str, object] = {
            "watch": before(vendors.watch, made.reports),
            "discover": after(vendors.discover, made.changed),
        }
        if allocates:
            hooks["allocate"] = before(vendors.allocate, made.count)
        if made.can_jam:
            hooks["released"] = before(vendors.released, made.refuse)
        derive(backend, hooks)
        return made

    def changed(self, _: DeviceBackend, devices: Iterable[Device]) -> list[Device]:
        """Return the devices without those that were taken away, and with the one that breaks the rules."""
        all_of = list(devices)
        self.ids |= {device_name(each.id): each.id for each in all_of}  # also of those that a lever took away
        found = [each for each in all_of if each.id not in self.hidden]
        if self.is_spoiled:  # kdp refuses it when it is made
            found.append(Device(id="spoiled", attributes={f"a{number}": number for number in range(33)}))
        return found

    def count(self, _: object) -> None:
        """Count a call of allocate."""
        self.allocations = (self.allocations or 0) + 1

    def refuse(self, _: object) -> None:
        """Refuse to be given back, while it is jammed."""
        if self.is_jammed:
            raise RuntimeError("made to fail by the conformance kit")


class _Instance(InProcess):
    def __init__(self, driver: DraDriver, node: DraNode, levers: SharedLevers, hardware: _Hardware) -> None:
        super().__init__(levers, hardware)
        self._driver = driver
        self._node = node
        self._hardware = hardware

    @override
    async def serve(self, started: Callable[[], None]) -> int | None:
        async with self._driver:
            started()
            await self.leave.wait()
        return None

    @override
    def own_id(self, device: str) -> str:
        """Return the backend's id for a name in a slice, which differs from an id that is no DNS label."""
        return self._hardware.ids.get(device, device)

    @override
    def sockets(self) -> Iterable[Path]:
        roots = self._node.paths.plugins_registry_dir, self._node.paths.plugins_dir
        return [path for root in roots for path in root.rglob("*") if path.is_socket()]

    @override
    def output(self) -> str:
        status = self._driver.status()
        drivers = status.drivers.values()
        state = [f"{each.driver} is {each.state}: {each.reason}" for each in drivers if each.reason]
        state += [f"{each.driver}: {each.problem}" for each in drivers if each.problem]
        state += [f"{name} is not ready: {problem}" for name, problem in status.backends if problem]
        return "\n".join((*self.lines, *state))

    @override
    async def vanish(self, device: str) -> None:
        if not await self.pulled("vanish", device):
            self._hardware.hidden.add(self.own_id(device))
            self._driver.rescan()

    @override
    async def add(self, device: str = "") -> None:
        if await self.pulled("add", device):
            return
        if not device:
            raise NotApplicable("the kit cannot make another device of this backend's")
        self._hardware.hidden.discard(self.own_id(device))
        self._driver.rescan()

    @override
    async def add_invalid_device(self, is_spoiled: bool) -> None:
        self._hardware.is_spoiled = is_spoiled
        self._driver.rescan()

    @override
    async def block_release(self, is_jammed: bool) -> None:
        if not self._hardware.can_jam:
            raise NotApplicable("the backend has no hook `released` that could fail")
        self._hardware.is_jammed = is_jammed

    @override
    def preparations(self) -> int | None:
        return self._hardware.allocations


class DraBackendSubject(DraSubject):
    """A class in this process.

    Args:
        make: Makes a fresh backend.
        levers: The hardware's; default: the kit's own, around the backend's hooks.
        previous: The version before it.
        settings: More for `DraDriver`.
    """

    can_reboot = True
    takes_grace = True

    def __init__(
        self,
        make: Callable[[], DeviceBackend],
        *,
        levers: Levers | None = None,
        previous: DraSubject | None = None,
        **settings: Any,
    ) -> None:
        self.previous = previous
        self._make = make
        self._levers = SharedLevers(levers)
        self.shares_hardware = self._levers.levers != Levers()
        self._settings = settings

    @override
    def extended(self) -> str:
        return self._make().resource or ""

    @override
    @asynccontextmanager
    async def start(self, node: DraNode, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        backend = self._make()
        hardware = _Hardware.of(backend)
        settings: dict[str, Any] = {
            "pod_uid": node.pod_uid or None,
            "boot_id": node.boot_id,
            "claim_grace": node.grace,
            "health_policy": _NO_QUARANTINE,
            **self._settings,
        }
        async with KubeApi(node.kubeconfig) as api:
            driver = DraDriver(
                [backend], DriverOptions(api=api, node=node.name, paths=node.paths, cdi=Path(node.cdi), **settings)
            )
            async with _Instance(driver, node, self._levers, hardware).running(wake) as instance:
                yield instance
