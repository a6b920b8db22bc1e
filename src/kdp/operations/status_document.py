"""The status document: the state of a running plugin as JSON, declared once for the plugin and for all commands.

`StatusDocument.to_json` writes it, and `StatusDocument.parse` reads it. The classes below are the declaration. A key of
the JSON is the name of an attribute, unless the attribute has another ``key``. The JSON has no key for the value
``left_out``.

* An unknown key is ignored, because a newer plugin may have more. A missing key is the attribute's default, because an
  older plugin may have fewer. Attributes without a default are in all versions.
* Any other difference is an error that names the place: ``resources[0].listed[3].health``. Another program may answer.
* Texts may have any character. Whoever shows them escapes them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, Union, cast, final, get_args, get_origin, get_type_hints

import attrs

from ..storage.documents import parse_json
from .status_facts import LOOP_BLOCKED, Moment

MOST_ITEMS: Final = 100_000
"""Items of one list or mapping. A plugin writes at most 20,000; the 64 MiB of an answer have room for 30 million."""

NOT_TOLD: Final = ""
"""The holder of a device if the kubelet does not report holders, or if there is no recent list."""

_LONGEST_KEY: Final = 60
"""Characters of a key that an error names: the keys of a mapping are another program's."""

_T = TypeVar("_T")


@final
@attrs.frozen(kw_only=True)
class RejectedConfiguration:
    """A configuration that the plugin does not use; it uses an earlier one.

    Attributes:
        state: ``rejected``.
        reason: Its fault.
        since: Time of the first attempt to read it.
    """

    state: str = "rejected"
    reason: str
    since: Moment


@final
@attrs.frozen(kw_only=True)
class LabelFile:
    """A file for Node Feature Discovery.

    Attributes:
        file: Its name.
        labels: The labels of one backend, by name.
        reason: Why it is not written. `None` if it is.
    """

    file: str
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
    reason: str | None = None


@final
@attrs.frozen(kw_only=True)
class LabelStatus:
    """The node's labels.

    Attributes:
        directory: Directory of the files.
        files: One file for each backend.
    """

    directory: str = ""
    files: tuple[LabelFile, ...] = ()


@final
@attrs.frozen(kw_only=True)
class KubeletStatus:
    """The kubelet, as a device plugin sees it.

    Attributes:
        state: ``listening``, for example.
        since: Creation time of its socket. `None` if there is no socket.
        restarts: Number of restarts that the plugin has seen.
    """

    state: str
    since: Moment | None = None
    restarts: int = 0


@final
@attrs.frozen(kw_only=True)
class MeasurementDeclaration:
    """A measurement that a backend declares.

    Attributes:
        name: Its name.
        unit: The unit of its values, for example ``celsius``.
        help: One sentence.
    """

    name: str
    unit: str = ""
    help: str = ""


@final
@attrs.frozen(kw_only=True)
class UnitLink:
    """A link of two units.

    Attributes:
        units: Their names.
        weight: Higher is better.
    """

    units: tuple[str, str]
    weight: float


@final
@attrs.frozen(kw_only=True)
class BackendStatus:
    """One backend.

    Attributes:
        class_name: Name of its class.
        reason: Why it has no devices. `None` if it discovers.
        measures: Its measurements. `None` if it has none, or metrics are off.
        links: The first 4,096 links of its units. Empty if no policy has asked for them.
    """

    class_name: str = attrs.field(metadata={"key": "class"})
    reason: str | None = None
    measures: tuple[MeasurementDeclaration, ...] | None = None
    links: tuple[UnitLink, ...] = ()


@final
@attrs.frozen(kw_only=True)
class DroppedSliceField:
    """A field of a ResourceSlice that the API server does not keep.

    Attributes:
        path: Its path in the object.
        gate: The feature gate that is off. Empty if it is unknown.
    """

    path: str
    gate: str = ""


@final
@attrs.frozen(kw_only=True)
class SliceStatus:
    """The ResourceSlices of a DRA driver.

    Attributes:
        generation: Generation of the pool; 0 if nothing is published.
        count: Number of slices.
        problem: Why they are not as wanted. `None` if they are, or if there are none yet.
        withheld: The first 20 devices that are not published, each with the feature gate that is off.
        dropped: Fields that the API server does not keep.
    """

    generation: int = 0
    count: int = 0
    problem: str | None = None
    withheld: Mapping[str, str] = attrs.field(factory=dict[str, str], metadata={"left_out": {}})
    dropped: tuple[DroppedSliceField, ...] = attrs.field(default=(), metadata={"left_out": ()})


@final
@attrs.frozen(kw_only=True)
class KubeletList:
    """Comparison of the kubelet's device list with the plugin's.

    Attributes:
        at: Time of the comparison.
        since: Time of the first difference. `None` if both are equal.
        missing: The first 20 healthy devices that the kubelet does not offer.
        phantom: The first 20 devices that the kubelet offers although the plugin does not report them as healthy.
    """

    at: Moment
    since: Moment | None = None
    missing: tuple[str, ...] = ()
    phantom: tuple[str, ...] = ()


@final
@attrs.frozen(kw_only=True)
class ClaimStatus:
    """A ResourceClaim that has devices of the driver.

    Attributes:
        name: ``namespace/name``.
        uid: Its UID.
        devices: Ids of its devices.
        is_prepared: Whether it is prepared.
        is_over: Whether it is unprepared, and ``released`` has not succeeded yet.
    """

    name: str
    uid: str = ""
    devices: tuple[str, ...] = ()
    is_prepared: bool = False
    is_over: bool = False


@final
@attrs.frozen(kw_only=True)
class ListedDevice:
    """A device that the plugin lists.

    Attributes:
        id: Its id.
        health: ``Healthy`` or ``Unhealthy``.
        state: The state of its health, for example ``quarantined``. Empty in older versions.
        reason: Why it is unhealthy. `None` if it is healthy.
        kinds: Kinds of its conditions.
        since: Time of the last change of its state. `None` if it was always healthy.
        numa_nodes: Numbers of its NUMA nodes.
        unit: The physical unit that it belongs to. Empty in older versions.
        nodes: Host paths of its device nodes. `None` in older versions.
        held_by: Its container, as ``namespace/pod (container)``, or its claims. `None` if it is free, `NOT_TOLD` if the
            holder is unknown.
        measured: Value of each measurement. `None` if nothing was measured.
    """

    id: str
    health: str
    state: str = ""
    reason: str | None = None
    kinds: tuple[str, ...] = ()
    since: Moment | None = None
    numa_nodes: tuple[int, ...] = ()
    unit: str = ""
    nodes: tuple[str, ...] | None = None
    held_by: str | None = attrs.field(default=NOT_TOLD, metadata={"left_out": NOT_TOLD})
    measured: Mapping[str, float] | None = attrs.field(default=None, metadata={"left_out": None})

    @property
    def is_healthy(self) -> bool:
        """Whether the kubelet may give it to a container."""
        return self.health == "Healthy"


@final
@attrs.frozen(kw_only=True)
class ServedResource:
    """A resource, or a DRA driver.

    Attributes:
        name: Its name.
        state: State of its registration, for example ``connected``.
        since: When the kubelet began to use it, or when it ceased to. `None` if it is unknown.
        reason: Why it is not ready. `None` if it is.
        devices: Number of devices.
        healthy: Number of healthy devices.
        cdi: Why the CDI file cannot be written.
        too_large: Why the newest device list is not sent.
        rival: Another plugin that serves the resource.
        given_twice: Devices that two pods hold.
        kubelet: Why the kubelet seems to hang.
        slices: ResourceSlices of a DRA driver.
        kubelet_list: Devices as the kubelet sees them. `None` before the first comparison.
        claims: Claims that have devices. `None` for a device plugin.
        listed: The first 20,000 devices.
    """

    name: str
    state: str = ""
    since: Moment | None = None
    reason: str | None = None
    devices: int = 0
    healthy: int = 0
    cdi: str | None = attrs.field(default=None, metadata={"left_out": None})
    too_large: str | None = attrs.field(default=None, metadata={"left_out": None})
    rival: str | None = attrs.field(default=None, metadata={"left_out": None})
    given_twice: str | None = attrs.field(default=None, metadata={"left_out": None})
    kubelet: str | None = attrs.field(default=None, metadata={"left_out": None})
    slices: SliceStatus | None = attrs.field(default=None, metadata={"left_out": None})
    kubelet_list: KubeletList | None = attrs.field(default=None, metadata={"left_out": None})
    claims: tuple[ClaimStatus, ...] | None = attrs.field(default=None, metadata={"left_out": None})
    listed: tuple[ListedDevice, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Faults that leave it ready."""
        found = (self.cdi, self.too_large, self.rival, self.given_twice, self.kubelet)
        return tuple(each for each in found if each)


@final
@attrs.frozen(kw_only=True)
class RecordedEvent:
    """An event in the history of the process.

    Attributes:
        at: Its time; the last one if it is counted.
        kind: Its kind, for example ``allocated``.
        subject: Name of a resource or driver. Empty for an event of the process.
        text: Its details.
        devices: Ids of its first devices.
        more: Number of its other devices.
        count: Number of equal events.
    """

    at: Moment
    kind: str
    subject: str = ""
    text: str = ""
    devices: tuple[str, ...] = ()
    more: int = 0
    count: int = 1


@final
@attrs.frozen(kw_only=True)
class StatusDocument:
    """The state of a plugin's process.

    Attributes:
        version: Its version of kdp.
        pid: Its process id in its own PID namespace.
        mode: The setting ``mode``, for example ``device-plugin``.
        node: Name of its node. `None` if no setting has it.
        started: When it began to serve.
        directories: Its directories by purpose; a directory is `None` if it is not used. `None` in older versions.
        settings: The settings that differ from their defaults, without secrets. `None` in older versions.
        is_ready: Whether the readiness probe succeeds.
        reason: Why nothing is served, or why the process is not ready.
        as_of: Time of the state that is shown. `None` if that is now: the event loop is not blocked.
        configuration: A configuration that is not used. `None` if there is none.
        absent: Backends without hardware on this node. `None` if there is none.
        labels: The node's labels. `None` if they are off.
        state_dir: Why nothing can be saved in the state directory. `None` if it can.
        kubelet: The kubelet. `None` if the mode has no kubelet.sock.
        backends: The backends.
        resources: The resources or drivers.
        events: The last events, the oldest first. `None` if the process keeps none. Empty in older versions.
    """

    version: str = attrs.field(default="", metadata={"key": "kdp"})
    pid: int = 0
    mode: str = ""
    node: str | None = None
    started: Moment | None = None
    directories: Mapping[str, str | None] | None = None
    settings: Mapping[str, str] | None = None
    is_ready: bool = attrs.field(metadata={"key": "ready"})
    reason: str | None = None
    as_of: Moment | None = None
    configuration: RejectedConfiguration | None = None
    absent: tuple[str, ...] | None = None
    labels: LabelStatus | None = None
    state_dir: str | None = None
    kubelet: KubeletStatus | None = None
    backends: tuple[BackendStatus, ...] = ()
    resources: tuple[ServedResource, ...]
    events: tuple[RecordedEvent, ...] | None = ()

    @classmethod
    def parse(cls, text: str | bytes) -> StatusDocument:
        """Return the document of a JSON text.

        Raises:
            ValueError: It is no JSON, or no document. The text names the place.
        """
        return cls.from_json(parse_json(text))

    @classmethod
    def from_json(cls, value: object) -> StatusDocument:
        """Return the document of a JSON value.

        Raises:
            ValueError: It is none. The text names the place.
        """
        return read(cls, value)

    def to_json(self) -> dict[str, Any]:
        """Return the document as a JSON value. 20,000 devices take 0.1 s: call it outside the event loop."""
        return cast("dict[str, Any]", to_json(self))

    @property
    def is_blocked(self) -> bool:
        """Whether a hook blocks the event loop of the process."""
        return LOOP_BLOCKED in (self.reason or "")

    @property
    def backend_problems(self) -> tuple[str, ...]:
        """Why backends have no devices, as ``Class: reason``."""
        return tuple(f"{each.class_name}: {each.reason}" for each in self.backends if each.reason)


# -- from and to JSON ------------------------------------------------------------------------------------------------

_Read = Callable[[object], Any]

_PLAIN: Final = {str, int, float, bool, Moment}


def read(kind: type[_T], value: object) -> _T:
    """Return a part of the document from its JSON value.

    Raises:
        ValueError: It is no such part. The text names the place.
    """
    found: Any = kind
    return cast("_T", _reader(found)(value))


def to_json(value: object) -> object:
    """Return a part of the document as a JSON value."""
    kind: Any = type(value)
    if kind in _PLAIN or value is None:
        return value
    if kind is tuple:
        return [to_json(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    found: dict[str, object] = {}
    for name, key, left_out, is_nested in _keys(kind):
        held = getattr(value, name)
        if held is not left_out and held != left_out:
            found[key] = to_json(held) if is_nested else held
    return found


_NEVER: Final = object()


@functools.cache
def _keys(kind: type[Any]) -> tuple[tuple[str, str, object, bool], ...]:
    """Return each attribute's name, its key, the value that the JSON leaves out, and whether the value has parts."""
    hints = get_type_hints(kind)
    return tuple(
        (each.name, each.metadata.get("key", each.name), each.metadata.get("left_out", _NEVER), not _is_plain(hint))
        for each, hint in ((each, hints[each.name]) for each in attrs.fields(kind))
    )


def _is_plain(hint: Any) -> bool:
    return hint in _PLAIN or (get_args(hint)[1:] == (types.NoneType,) and get_args(hint)[0] in _PLAIN)


@functools.cache
def _reader(kind: Any) -> _Read:
    """Return the function that reads a value of a type which an attribute above has."""
    origin, arguments = get_origin(kind), get_args(kind)
    if attrs.has(kind):
        return _object_reader(kind)
    if origin in (Union, types.UnionType):
        read = _reader(next(each for each in arguments if each is not types.NoneType))
        return lambda value: None if value is None else read(value)
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader(arguments[1]))
    if origin is tuple:
        number = None if arguments[1] is Ellipsis else len(arguments)
        return functools.partial(_read_list, _reader(arguments[0]), number)
    return _READERS[kind]


def _object_reader(kind: type[Any]) -> _Read:
    hints = get_type_hints(kind)
    readers = [(each, each.metadata.get("key", each.name), _reader(hints[each.name])) for each in attrs.fields(kind)]

    def read(value: object) -> Any:
        found = _mapping(value)
        values: dict[str, Any] = {}
        for attribute, key, read_one in readers:
            if key in found:
                values[attribute.name] = _placed(f".{key}", read_one, found[key])
            elif attribute.default is attrs.NOTHING:
                raise ValueError(f"it has no key {key!r}")
        return kind(**values)

    return read


def _placed(place: str | int, read: _Read, value: object) -> Any:
    """Read a value at a place, which errors name."""
    try:
        return read(value)
    except ValueError as error:
        place = f"[{place}]" if isinstance(place, int) else place
        raise ValueError(f"{place}{'' if str(error)[:1] in '.[' else ': '}{error}") from None


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _unlike("an object", value)
    return _bounded(cast("dict[str, object]", value))


def _read_mapping(read: _Read, value: object) -> Mapping[str, Any]:
    return {key: _placed(f".{key[:_LONGEST_KEY]}", read, each) for key, each in _mapping(value).items()}


def _read_list(read: _Read, number: int | None, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unlike("a list", value)
    items = _bounded(cast("list[object]", value))
    if number not in (None, len(items)):
        raise ValueError(f"expected {number} items, not {len(items)}")
    return tuple(_placed(index, read, each) for index, each in enumerate(items))


_Sized = TypeVar("_Sized", list[object], dict[str, object])


def _bounded(value: _Sized) -> _Sized:
    if len(value) > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS} items")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise _unlike("a text", value)
    return value


def _read_moment(value: object) -> Moment:
    from datetime import datetime  # late: a plugin only writes

    text = _read_text(value)
    try:
        is_one = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("expected a time, for example '2026-03-04T11:00:00+00:00'")
    return Moment(text)


def _read_number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _unlike("a number", value)
    return value


def _read_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unlike("a whole number", value)
    return value


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _unlike("true or false", value)
    return value


_READERS: Final[Mapping[Any, _Read]] = {
    str: _read_text,
    Moment: _read_moment,
    float: _read_number,
    int: _read_count,
    bool: _read_bool,
}


_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    types.NoneType: "null",
}


def _unlike(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, not {_KINDS.get(type(value), 'a number')}")
