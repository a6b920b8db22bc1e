"""`share`: a backend whose devices are advertised several times. It wraps any backend and is one itself.

The backend inside sees its own devices only: ``allocate`` gets the device of a replica once, however many of its
replicas the container has; a fault that ``watch`` reports of a device is one of all its replicas; ``prefer`` chooses
among units. Each replica carries the device it is of as its ``handle``, so no table of replicas is kept.

``released`` reaches the backend when no other container has the device: what scrubs it must not meet them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import attrs
from typing_extensions import override

from ..errors import AllocationError, InvalidNameError, InvalidValueError
from ..model.backend import Allocation, DeviceBackend, PreferRequest, Reporter, WrappedBackend, is_overridden
from ..model.devices import Device, recalled
from .counting import one_of_each_unit
from .problem import Problem
from .sharing import base_id, replica_id

if TYPE_CHECKING:
    from ..model.edits import ContainerEdits
    from .sharing import Sharing


@final
@attrs.frozen
class _Origin:
    """A replica's ``handle``: the device it is of."""

    device: Device


def share(backend: DeviceBackend, sharing: Sharing) -> DeviceBackend:
    """Return a backend that serves this one's devices, shared.

    Give the returned backend to `kdp.run`; the one inside must not be served besides. Options that its class reads are
    read anew each time, so it may change them.

    Args:
        backend: Any backend but one that is shared already.
        sharing: How.

    Raises:
        InvalidValueError: It is shared already.
    """
    if isinstance(backend, _Shared):
        raise InvalidValueError(f"{type(backend).__name__} is shared already: share it once, with all overrides")
    # A class of its own, so that only those hooks count as written which the vendor wrote, and texts name his class.
    hooks: dict[str, Any] = {"__module__": type(backend).__module__, "__doc__": type(backend).__doc__, **_ATTRIBUTES}
    for hook, wrapper in _WRAPPERS.items():
        wanted = sharing.placement == "distinct" if hook == "prefer" else True
        if wanted and is_overridden(backend, hook):
            hooks[hook] = wrapper(getattr(backend, hook))
    if not is_overridden(backend, "allocate"):
        hooks["allocate"] = _shared_default
    hooks["labels"] = _WRAPPERS["labels"](backend.labels)  # the default, too, is about cards and not replicas
    return cast("DeviceBackend", type(type(backend).__name__, (_Shared,), hooks)(backend, sharing))


class _Shared(WrappedBackend):
    """What all shared backends have in common; the hooks are added by `share`."""

    def __init__(self, inner: DeviceBackend, sharing: Sharing) -> None:
        self.inner = inner
        self.sharing = sharing
        self._made: dict[str, tuple[Device, str, list[Device]]] = {}
        self._asked: tuple[PreferRequest | None, Problem | None] = (None, None)

    def units(self, request: PreferRequest) -> Problem | None:
        """Return the question about units, each stood for by a replica; None: so many different units there are not.

        It is asked before the hook ``prefer`` and after it, and sorts thousands of replicas: the newest one is kept.
        """
        if self._asked[0] is not request:
            must = [device.id for device in request.must_include]
            self._asked = request, one_of_each_unit(Problem.of(request.available, must, request.size))
        return self._asked[1]

    @override
    def device_of(self, device_id: str) -> str:
        return base_id(device_id)

    def static(self, name: str) -> str:
        """Return a statically named resource: renamed if all its devices are shared."""
        return name if self.sharing.replicas is None else self.sharing.resource(name)

    def replicated(self, devices: Iterable[Device]) -> list[Device]:
        """Return the devices with the shared ones replaced by their replicas."""
        found: list[Device] = []
        made, self._made = self._made, {}
        for device in devices:
            if not isinstance(device, Device):  # pyright: ignore[reportUnnecessaryIsInstance]
                found.append(device)  # the caller of discover() reports what is wrong
                continue
            before = made.get(device.id)
            known = recalled(device, before[0] if before else None)
            resource = known.resource or self.inner.resource or ""
            if before is None or before[0] is not known or before[1] != resource:
                before = (known, resource, self._replicas(known, resource))
            self._made[device.id] = before  # the same object again has the same replicas, which nobody need compare
            found += before[2]
        return found

    def _replicas(self, device: Device, resource: str) -> list[Device]:
        """Return a device's replicas; one that is not shared itself."""
        if base_id(device.id) != device.id:
            raise InvalidNameError(
                f"device id {device.id!r}: '::' and a number at the end is how the replicas of shared devices are "
                f"named; for example {base_id(device.id).rstrip(':') or 'widget-0'!r}"
            )
        count = self.sharing.count(device, resource)
        if count is None:
            return [device]
        renamed = self.sharing.resource(resource) if resource else None
        return [
            attrs.evolve(
                device, id=replica_id(device.id, n), unit=device.unit, resource=renamed, handle=_Origin(device)
            )
            for n in range(count)
        ]

    @override
    def discover(self) -> Iterable[Device]:
        raise NotImplementedError  # `share` puts one in its place

    def of_containers(self, allocation: Allocation) -> Allocation:
        """Return an allocation as the backend inside sees it; its state is the same object."""
        resource = next((d.handle.device.resource for d in allocation if isinstance(d.handle, _Origin)), None)
        resource = resource or self.inner.resource or allocation.resource
        return attrs.evolve(allocation, devices=_origins(allocation), resource=resource)

    def check_limit(self, allocation: Allocation) -> None:
        """Refuse a container that asks for too many replicas."""
        limit = self.sharing.limit
        asked = sum(isinstance(device.handle, _Origin) for device in allocation)
        if limit is not None and asked > limit:
            raise AllocationError(
                f"{allocation.resource}: the container asks for {asked} replicas of shared devices, at most {limit} "
                f"are allowed here; more replicas give no more of a device, so ask for {limit}"
            )


def _read_inside(name: str) -> property:
    """Return an attribute that is the inner backend's, which may change it at any time."""
    return property(lambda self: getattr(self.inner, name))


_ATTRIBUTES: Mapping[str, property] = {
    **{
        name: _read_inside(name)
        for name, held in vars(DeviceBackend).items()
        if not name.startswith("_") and not callable(held)
    },
    "resource": property(lambda self: None if self.inner.resource is None else self.static(self.inner.resource)),
    "resources": property(lambda self: [self.static(name) for name in self.inner.resources]),
    "placement": property(lambda self: self.sharing.placement),
    # `share` makes only those that are used; labels have a default.
    "unused_hooks": property(lambda self: tuple(hook for hook in self.inner.unused_hooks if hook == "labels")),
}


def _origins(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices of replicas, each once, in the order of their ids; what is not shared stays itself."""
    held = {(origin := _origin(device)).id: origin for device in devices}
    return tuple(held[name] for name in sorted(held))


def _origin(device: Device) -> Device:
    """Return the device that a replica is of. One that is known by its id alone has gone since it was given out."""
    if isinstance(device.handle, _Origin):
        return device.handle.device
    base = base_id(device.id)
    return device if base == device.id else attrs.evolve(device, id=base)


# -- the hooks: each wrapper makes one of its own kind, ``def`` or ``async def``, of the vendor's ----------------------

_Hook = Callable[..., Any]


def _wrapped(
    inner: _Hook, before: Callable[..., tuple[Any, ...] | None], after: Callable[..., Any] | None = None
) -> _Hook:
    """Return a hook that calls ``inner`` with what ``before`` makes of its arguments, and changes what it returns.

    If ``before`` returns None, ``inner`` is not called.
    """
    if inspect.iscoroutinefunction(inner):

        async def wait(self: _Shared, *args: Any) -> Any:
            asked = before(self, *args)
            result = None if asked is None else await inner(*asked)
            return after(self, result, *args) if after else result

        return wait

    def call(self: _Shared, *args: Any) -> Any:
        asked = before(self, *args)
        result = None if asked is None else inner(*asked)
        return after(self, result, *args) if after else result

    return call


def _same(_self: _Shared, *args: Any) -> tuple[Any, ...]:
    return args


def _limited(self: _Shared, allocation: Allocation) -> tuple[Allocation]:
    self.check_limit(allocation)
    return (self.of_containers(allocation),)


def _of_containers(self: _Shared, allocation: Allocation) -> tuple[Allocation]:
    return (self.of_containers(allocation),)


def _with_origins(_self: _Shared, devices: Sequence[Device]) -> tuple[Sequence[Device]]:
    return (_origins(devices),)


def _watching(self: _Shared, report: Reporter) -> tuple[Reporter]:
    return (_Relay(report, self.sharing.most),)


async def _shared_default(self: _Shared, devices: Allocation) -> ContainerEdits:
    """Merge the devices' edits, in the event loop: there is no vendor's code to wait for."""
    (allocation,) = _limited(self, devices)
    return cast("ContainerEdits", DeviceBackend.allocate(self, allocation))


def _freed(self: _Shared, allocation: Allocation) -> tuple[Allocation] | None:
    inside = self.of_containers(allocation)
    free = tuple(device for device in inside if device.id not in allocation.shared_with)
    return (attrs.evolve(inside, devices=free),) if free else None


def _among_units(self: _Shared, request: PreferRequest) -> tuple[PreferRequest] | None:
    units = self.units(request)
    if units is None:
        return None
    chosen = tuple(_origin(units.devices[i]) for i in sorted(units.must))
    return (attrs.evolve(request, available=tuple(map(_origin, units.devices)), must_include=chosen),)


def _as_replicas(self: _Shared, ids: Sequence[str] | None, request: PreferRequest) -> list[str] | None:
    units = self.units(request)
    if ids is None or units is None:
        return None
    replicas = {_origin(device).id: device.id for device in units.devices}
    return [replicas.get(name, name) for name in ids]


@final
class _Relay:
    """The vendor's `Reporter`: a fault of a device is one of all its replicas."""

    def __init__(self, report: Reporter, most: int) -> None:
        self.stopping = report.stopping
        self._report = report
        self._most = most

    def rescan(self) -> None:
        self._report.rescan()

    def fault(self, ids_or_unit: str | Iterable[str], reason: str, *, kind: str = "fault") -> None:
        self._report.fault(self._replicas(ids_or_unit), reason, kind=kind)

    def clear(self, ids_or_unit: str | Iterable[str], *, kind: str = "fault") -> None:
        self._report.clear(self._replicas(ids_or_unit), kind=kind)

    def _replicas(self, ids_or_unit: str | Iterable[str]) -> list[str]:
        names = [ids_or_unit] if isinstance(ids_or_unit, str) else list(ids_or_unit)
        return [name for own in names for name in (own, *(f"{own}::{n}" for n in range(self._most)))]


_WRAPPERS: Mapping[str, Callable[[_Hook], _Hook]] = {
    "discover": lambda inner: _wrapped(inner, _same, _Shared.replicated),
    "open": lambda inner: _wrapped(inner, _same),
    "close": lambda inner: _wrapped(inner, _same),
    "watch": lambda inner: _wrapped(inner, _watching),
    "allocate": lambda inner: _wrapped(inner, _limited),
    "prefer": lambda inner: _wrapped(inner, _among_units, _as_replicas),
    "links": lambda inner: _wrapped(inner, _with_origins),
    "counters": lambda inner: _wrapped(inner, _same),
    "prepare_container": lambda inner: _wrapped(inner, _of_containers),
    "released": lambda inner: _wrapped(inner, _freed),
    "measure": lambda inner: _wrapped(inner, _same),
    "labels": lambda inner: _wrapped(inner, _with_origins),
    "needs": lambda inner: _wrapped(inner, _same),
}
