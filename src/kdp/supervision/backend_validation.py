"""Checks what a backend says: its attributes, how its hooks can be called, and what ``discover`` returned.

Attributes and signatures are checked before anything is served: the start reports what would otherwise fail for the
first pod, or never, and in one sentence instead of a traceback. A hook's own signature counts, and not that of what a
decorator wraps, because the decorator is what is called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..errors import ConfigurationError, InvalidValueError, kind_of, lasting, message_of
from ..hardware import Host
from ..model.backend import OPTIONAL_HOOKS, DeviceBackend, WrappedBackend, is_overridden
from ..model.devices import Device, Health, recalled
from ..model.names import check_resource_name
from ..startup import shown
from .conditions import Conditions

if TYPE_CHECKING:
    from collections.abc import Callable


def check_attributes(backend: DeviceBackend) -> None:
    """Check all attributes of a backend but its thresholds, for which there is `kdp.model.health_policy.policy_of`.

    Raises:
        ConfigurationError: One is of another kind than `DeviceBackend` says, or cannot be read.
    """
    for name, check in _CHECKS.items():
        label = f"{type(backend).__name__}.{name}"
        try:
            value = getattr(backend, name)
        except Exception as error:
            raise ConfigurationError(
                f"{label} raised {type(error).__name__}: {message_of(error)}; it is read before the backend is open"
            ) from error
        try:
            check(value)
        except InvalidValueError as error:
            raise ConfigurationError(f"{label}: {error}") from None
    try:
        measures = is_overridden(backend, "measure")
    except InvalidValueError as error:
        raise ConfigurationError(str(error)) from None
    if backend.measurements and not measures:
        raise ConfigurationError(
            f"{type(backend).__name__}: measurements are declared, and there is no hook 'measure' that gives them; "
            "write one, or declare none"
        )


def class_of(backend: DeviceBackend) -> str:
    """Return the name of a backend's class with its module; for a shared backend, the class that it shares."""
    while isinstance(backend, WrappedBackend):
        backend = backend.inner
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def scrubs(backend: DeviceBackend, policy: str | None) -> bool:
    """Return whether devices of a backend are scrubbed between two pods.

    Args:
        backend: The backend.
        policy: The policy that goes before its own; None: there is none.

    Raises:
        ConfigurationError: It has no hook that could do it.
    """
    if (policy or backend.release_policy) != "scrub":
        return False
    if not is_overridden(backend, "released"):
        raise ConfigurationError(
            f"{type(backend).__name__}: the release policy is 'scrub', and there is no hook 'released' that scrubs; "
            "write one, or leave the policy at 'notify'"
        )
    return True


def check_pre_start(backend: DeviceBackend) -> str | None:
    """Return a warning about ``prepare_container`` of a backend that a DRA driver serves; `None` if there is no need.

    Raises:
        ConfigurationError: The hook must run before every start of a container.
    """
    if backend.prepares_every_start is False or not is_overridden(backend, "prepare_container"):
        return None
    name = type(backend).__name__
    if backend.prepares_every_start:
        raise ConfigurationError(
            f"{name}.prepares_every_start is True, and in DRA mode no hook runs before every start of a container; "
            "serve it as a device plugin, or let prepare_container() do its work once for each claim"
        )
    return (
        f"{name}: in DRA mode prepare_container() runs once for each claim, before its first pod, and not before every "
        f"start of a container; set {name}.prepares_every_start to False if once is enough, and to True if it is not"
    )


def _resource(value: Any) -> None:
    if value is not None:
        check_resource_name(_text(value, "a resource's name or None; for example 'example.com/widget'"))


def _resources(value: Any) -> None:
    rule = "a sequence of resources' names; for example ['example.com/widget']"
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be {rule}")
    for name in value:  # pyright: ignore[reportUnknownVariableType]
        check_resource_name(_text(name, "a resource's name; for example 'example.com/widget'"))


def _joined_env(value: Any) -> None:
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str)
        for pair in value.items()  # pyright: ignore[reportUnknownVariableType]
        for text in pair  # pyright: ignore[reportUnknownVariableType]
    ):
        raise InvalidValueError(f"{value!r} must map variables to separators; for example {{'WIDGETS': ','}}")


def _policy(value: Any) -> None:
    if value is not None:
        from ..allocation.policies import check_policy  # late: few backends have a policy

        check_policy(_text(value, "the name of a policy or None; for example 'packed'"))


def _unused_hooks(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be a collection of hooks' names; for example ('released',)")
    for name in value:  # pyright: ignore[reportUnknownVariableType]
        _text(name, "a hook's name; for example 'released'")


def _measurements(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidValueError(f"{value!r} must be a sequence of kdp.Measurement")
    if not value:
        return
    from ..model.measurements import MOST_MEASUREMENTS, Measurement  # late: few backends measure

    found: set[str] = set()
    for each in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(each, Measurement):
            raise InvalidValueError(f"{each!r} must be a kdp.Measurement")
        if each.name in found:
            raise InvalidValueError(f"measurement {each.name!r} is there twice: name one of them otherwise")
        found.add(each.name)
    if len(found) > MOST_MEASUREMENTS:
        raise InvalidValueError(f"{len(found)} measurements: at most {MOST_MEASUREMENTS} are exported; leave some out")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any, rule: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{value!r} must be {rule}")
    return value


def _must(be: Callable[[Any], bool], rule: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not be(value):
            raise InvalidValueError(f"{value!r} must {rule}")

    return check


_CHECKS = {
    "resource": _resource,
    "resources": _resources,
    "poll_interval": _must(
        lambda value: value is None or (_is_number(value) and 0 < value < math.inf),
        "be a number of seconds above 0, or None for never; for example 5.0",
    ),
    "stale_after": _must(lambda value: _is_number(value) and value >= 0, "be a number of seconds; for example 30.0"),
    "joined_env": _joined_env,
    "policy": _policy,
    "release_policy": _must(lambda value: value in ("notify", "scrub"), "be 'notify' or 'scrub'"),
    "unused_hooks": _unused_hooks,
    "measurements": _measurements,
    "prepares_every_start": _must(lambda value: value is None or isinstance(value, bool), "be True, False, or None"),
    "measure_interval": _must(
        lambda value: _is_number(value) and 0 < value < math.inf, "be a number of seconds above 0; for example 10.0"
    ),
}


def check_signatures(backend: DeviceBackend) -> None:
    """Check that each hook of a backend is a method that takes kdp's arguments, and that its body runs in each call.

    Raises:
        ConfigurationError: One is not.
    """
    if isinstance(backend, WrappedBackend):
        check_signatures(backend.inner)
        return
    for hook in ("discover", *sorted(OPTIONAL_HOOKS)):
        found = _written(backend, hook)
        if found is None:
            continue
        function, has_self = found
        _check_kind(f"{type(backend).__name__}.{hook}", hook, function)
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):  # a function in C, which does not tell
            continue
        expected = inspect.signature(getattr(DeviceBackend, hook))
        names = list(expected.parameters)
        try:
            signature.bind(*names if has_self else names[1:])
        except TypeError:
            call = f"{hook}({', '.join(names[1:])})"
            plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
            written = str(signature.replace(parameters=plain, return_annotation=signature.empty))
            raise ConfigurationError(
                f"{type(backend).__name__}.{hook}{written}: kdp calls {call}, which this hook does not take; "
                f"expected def {hook}({', '.join(names)})"
            ) from None


_WITHOUT_ARGUMENTS: Final = frozenset(("discover", "open", "close", "counters", "measure", "needs"))


def _check_cache(name: str, hook_name: str, hook: Any) -> None:
    """Refuse a hook without arguments in `functools.lru_cache`: its first answer would be the answer forever."""
    if hook_name not in _WITHOUT_ARGUMENTS:
        return
    if hasattr(inspect.unwrap(hook, stop=lambda each: hasattr(each, "cache_parameters")), "cache_parameters"):
        raise ConfigurationError(
            f"{name}: is cached, so only its first call would run; remove the cache, because kdp asks what is true now"
        )


def _check_kind(name: str, hook: str, function: Callable[..., Any]) -> None:
    """Refuse a generator: a call of it runs nothing of its body."""
    written = inspect.unwrap(function)
    code = getattr(written, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    if getattr(getattr(function, "__code__", None), "co_filename", "") == contextlib.__file__:
        raise ConfigurationError(f"{name}{place}: is a context manager, so its body would never run; {_INSTEAD[hook]}")
    if inspect.isasyncgenfunction(function) or (hook != "discover" and inspect.isgeneratorfunction(function)):
        raise ConfigurationError(f"{name}{place}: has a yield, so its body would never run; {_INSTEAD[hook]}")


_RETURN = "return the whole result"
_INSTEAD = {
    **dict.fromkeys(OPTIONAL_HOOKS, _RETURN),
    "discover": "return a list",
    "open": "acquire in open(), keep it on self, and release it in close()",
    "close": "release in close() what open() has acquired",
    "watch": "call report.fault(), report.clear(), or report.rescan() there instead",
    "prepare_container": "prepare the devices and return",
    "released": "clean up and return",
}
"""What to write instead of a ``yield``."""


def _written(backend: DeviceBackend, hook: str) -> tuple[Callable[..., Any], bool] | None:
    """Return the vendor's function for a hook, and whether it takes ``self``; None: there is none that can be judged.

    No property is read, because that would run the vendor's code.

    Raises:
        ConfigurationError: It is no method.
    """
    found = inspect.getattr_static(type(backend), hook)
    if found is inspect.getattr_static(DeviceBackend, hook):
        return None
    if isinstance(found, (property, functools.cached_property)) or not (callable(found) or hasattr(found, "__get__")):
        names, kind = (
            ", ".join(inspect.signature(getattr(DeviceBackend, hook)).parameters),
            kind_of(cast("object", found)),
        )
        raise ConfigurationError(
            f"{type(backend).__name__}.{hook}: is {kind}, and kdp calls it; write def {hook}({names})"
        )
    own: object = vars(backend).get(hook)
    _check_cache(f"{type(backend).__name__}.{hook}", hook, found if own is None else own)
    if own is not None:
        return (own, False) if callable(own) else None
    if isinstance(found, (staticmethod, classmethod)):
        decorated = cast("staticmethod[..., Any] | classmethod[Any, ..., Any]", found)
        return decorated.__func__, isinstance(found, classmethod)
    return (found, True) if inspect.isfunction(found) else None


@attrs.frozen(kw_only=True)
class Findings:
    """What one ``discover`` returned, and what its device nodes looked like.

    Attributes:
        devices: The devices as the backend made them.
        conditions: The conditions that kdp itself has found, by device id.
        resources: The statically named resources.
        resource: The one of devices that name none; None: all of them name theirs.
        stale_after: Seconds that they may be old before they are Unhealthy.
    """

    __repr__ = shown

    devices: tuple[Device, ...]
    conditions: Conditions
    resources: tuple[str, ...]
    resource: str | None
    stale_after: float


MOST_DEVICES: Final = 100_000
"""A list of 4 MiB has room for fewer, unless their ids are very short (contract section 5)."""


def checked_devices(found: Any, backend: DeviceBackend, before: Sequence[Device] = ()) -> tuple[Device, ...]:
    """Return the devices that ``discover`` returned; it consumes a generator, and so may block.

    Args:
        found: What ``discover`` returned.
        backend: The backend.
        before: The devices of the discovery before: what is not described now stays as it was.

    Raises:
        InvalidValueError: It returned something else, too many, an id twice, or a device without a resource.
    """
    try:
        iterator = iter(found)
    except TypeError:
        raise InvalidValueError(f"it returned {lasting(repr(found))}: must be an iterable of kdp.Device") from None
    devices: dict[str, Device] = {}
    known = {device.id: device for device in before}
    for device in iterator:
        if not isinstance(device, Device):
            raise InvalidValueError(
                f"it returned {lasting(repr(device))}: must be a kdp.Device, this is {kind_of(device)}"
            )
        if device.id in devices:
            raise InvalidValueError(f"it returned device id {device.id!r} twice: ids must be unique in the process")
        if len(devices) == MOST_DEVICES:
            raise InvalidValueError(
                f"it returned more than {MOST_DEVICES:,} devices, and no list can carry them; let a generator end"
            )
        if device.health.conditions:  # only kdp sets them
            device = attrs.evolve(device, health=Health(device.health.reason))
        device = devices[device.id] = recalled(device, known.get(device.id))
        if device.is_described:
            resource_of(device, backend)
    return tuple(devices.values())


def resource_of(device: Device, backend: DeviceBackend) -> str:
    """Return the resource that a device belongs to.

    Raises:
        InvalidValueError: Neither the device nor its backend names one.
    """
    resource = device.resource or backend.resource
    if resource is None:
        raise InvalidValueError(
            f"device {device.id!r} names no resource and {type(backend).__name__}.resource is None: set one of them"
        )
    return resource


def clashing_variable(devices: Iterable[Device], backend: DeviceBackend) -> tuple[str, str, str] | None:
    """Return two resources and a variable that their devices set to different values; None: there is none.

    A container that asks for both gets one reply for each, and of two values the kubelet takes one
    (``pkg/kubelet/cm/devicemanager/pod_devices.go``). `DeviceBackend.joined_env` joins values within one reply, and in
    a DRA driver within one claim.
    """
    joined = backend.joined_env if vars(backend).get("is_dra") else dict[str, str]()
    found: dict[str, tuple[dict[str, None], set[str]]] = {}
    for device in devices:
        for name, text in device.edits.env.items():
            if name in joined:
                continue
            resources, values = found.setdefault(name, ({}, set()))
            resources[resource_of(device, backend)] = None
            values.add(text)
            if len(resources) > 1 and len(values) > 1:
                first, second = resources
                return first, second, name
    return None


def static_resources(backend: DeviceBackend) -> tuple[str, ...]:
    """Return the resources that a backend names itself, devices or not; each name is checked.

    Raises:
        InvalidNameError: The kubelet would not accept a name.
    """
    names = (*((backend.resource,) if backend.resource is not None else ()), *backend.resources)
    return tuple(dict.fromkeys(check_resource_name(name) for name in names))


_DEPTH: Final = 3
"""A backend may be wrapped (shared, recorded, tested), and a wrapper wrapped."""


def agreed_host(backends: Iterable[object], given: Host | None = None) -> Host:
    """Return the one `Host` of these backends, by which kdp looks at device nodes and mounts, too.

    Were they two, a backend would list what kdp does not find. The command hands the same one to both; where a program
    makes its backends itself, the backend's is taken.

    Args:
        backends: The vendors' objects; each attribute of one that is a `Host` counts, also of one that it wraps.
        given: What kdp was told; None: nothing.

    Raises:
        ConfigurationError: There are two that differ.
    """
    chosen, owner = given, "host_root"
    for backend in backends:
        for host in _hosts_of(backend, _DEPTH):
            name = type(backend).__name__
            if chosen is None:
                chosen, owner = host, name
            elif host.root != chosen.root:
                raise ConfigurationError(
                    f"{name} reads the node's files at {host.root}, but {owner} says {chosen.root}; give both the same "
                    f"kdp.hardware.Host, or start it with the command kdp, which does"
                )
    return chosen or Host()


def _hosts_of(thing: object, depth: int) -> list[Host]:
    found: list[Host] = []
    for value in cast("dict[str, object]", getattr(thing, "__dict__", {})).values():
        if isinstance(value, Host):
            found.append(value)
        elif depth and hasattr(type(value), "discover"):
            found += _hosts_of(value, depth - 1)
    return found
