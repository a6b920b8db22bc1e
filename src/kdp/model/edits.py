"""What a container must be given to use a device: the one currency between backends and every protocol.

`ContainerEdits` is CDI's ``containerEdits`` plus annotations. Allocate's reply, a CDI spec and a DRA claim are
renderings of it. No rendering can carry everything; what one cannot carry is an error when declared:

============== ================ ======== ===========================================
field          Allocate's reply CDI spec note
============== ================ ======== ===========================================
env            yes              yes
device_nodes   yes              yes      a link is resolved at each start
mounts         yes              yes      of Allocate only read-only or read-write
annotations    yes              no       CRI container annotations, not the pod's
hooks          no               yes
cdi_devices    yes              no       names whose specs somebody else writes
============== ================ ======== ===========================================

Paths are paths on the node; this module does not open them (a DaemonSet may see the node's ``/dev`` elsewhere).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Generic, Literal, TypeVar, cast, get_args

import attrs

from ..errors import AllocationError, EditConflictError, InvalidValueError, kind_of
from ..startup import shown
from .frozen import FrozenDict, dict_of
from .names import check_absolute_path, check_cdi_device_name, check_env_name, check_env_variable, is_utf8

__all__ = ["CdiHook", "ContainerEdits", "DeviceNode", "Mount"]

AnyPath = str | os.PathLike[str]
HookName = Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]

_PERMISSIONS = {
    "".join(letters): "".join(sorted(letters, key="rwm".index))
    for count in (1, 2, 3)
    for letters in itertools.permutations("rwm", count)
}
"""As a vendor may write them, and as the kubelet is told."""

_HOOK_NAMES: tuple[HookName, ...] = get_args(HookName)
_T = TypeVar("_T")


def _host_path(value: AnyPath) -> str:
    return check_absolute_path(os.fspath(value), kind="host path")


def _container_path(value: AnyPath | None) -> str | None:
    return None if value is None else check_absolute_path(os.fspath(value), kind="container path")


def _permissions(value: str) -> str:
    if not isinstance(value, str) or value not in _PERMISSIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"device permissions {value!r}: must be one to three of r (read), w (write) and m (mknod); for example 'rw'"
        )
    return _PERMISSIONS[value]


def _read_only(value: bool) -> bool:
    if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"mount's read_only {value!r}: must be True or False; for example True")
    return value


def forget_default(value: object, field: str, default: str) -> None:
    """Store what equals its default as unset, so that equal values are equal and `attrs.evolve` makes a new default."""
    if getattr(value, field) == default:
        object.__setattr__(value, field, None)


@attrs.frozen(kw_only=True)
class DeviceNode:
    """A character or block device to appear in the container.

    Attributes:
        host_path: The node's path on the node; a link to it will do.
        container_path: The path in the container; default: the declared host path.
        permissions: What the container's cgroup allows, of ``rwm``; default ``rw``. ``m`` lets the container make
            the node anew with mknod(2), which hardly any workload needs.
    """

    __repr__ = shown

    host_path: str = attrs.field(converter=_host_path)
    _container_path: str | None = attrs.field(default=None, converter=_container_path, alias="container_path")
    permissions: str = attrs.field(default="rw", converter=_permissions)

    def __attrs_post_init__(self) -> None:
        forget_default(self, "_container_path", self.host_path)

    @property
    def container_path(self) -> str:
        """The path in the container."""
        return self._container_path or self.host_path


@attrs.frozen(kw_only=True)
class Mount:
    """A bind mount. A missing host path is an error at Allocate: containerd would make an empty directory of it.

    Attributes:
        host_path: File or directory on the node.
        container_path: Where it appears; default: the host path.
        read_only: Whether the container may only read it.
    """

    __repr__ = shown

    host_path: str = attrs.field(converter=_host_path)
    _container_path: str | None = attrs.field(default=None, converter=_container_path, alias="container_path")
    read_only: bool = attrs.field(default=False, converter=_read_only)

    def __attrs_post_init__(self) -> None:
        forget_default(self, "_container_path", self.host_path)

    @property
    def container_path(self) -> str:
        """Where it appears in the container."""
        return self._container_path or self.host_path


def _text_tuple(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidValueError(
            f"{value!r}: must be a sequence of texts, not one text; for example ['--flag', 'value']"
        )
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not is_utf8(item):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{item!r}: must be UTF-8 text; for example ['--flag', 'value']")
    return items


def _hook_env(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(check_env_variable(variable) for variable in _text_tuple(value))


def _hook_name(value: HookName) -> HookName:
    if value not in _HOOK_NAMES:
        raise InvalidValueError(
            f"OCI hook {value!r}: must be one of {', '.join(_HOOK_NAMES)}; for example 'createContainer'"
        )
    return value


def _timeout(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"OCI hook's timeout {value!r}: must be a whole number of seconds above 0 and below 2**63, or None; valid "
            "is 30"
        )
    return value


@attrs.frozen(kw_only=True)
class CdiHook:
    """An OCI hook, run by the container runtime on the node; only a CDI spec can carry it.

    Attributes:
        name: When it runs (OCI runtime specification, "POSIX-platform Hooks").
        path: The program on the node.
        args: Its arguments, the program's name first.
        env: Its environment as ``NAME=VALUE``.
        timeout: Seconds after which the runtime gives up; None: no limit.
    """

    __repr__ = shown

    name: HookName = attrs.field(converter=_hook_name)
    path: str = attrs.field(converter=_host_path)
    args: tuple[str, ...] = attrs.field(default=(), converter=_text_tuple)
    env: tuple[str, ...] = attrs.field(default=(), converter=_hook_env)
    timeout: int | None = attrs.field(default=None, converter=attrs.converters.optional(_timeout))


_NOTHING: Mapping[str, str] = FrozenDict()
"""What all edits share that have none: those of ten thousand devices need no mappings of their own."""


def _text_mapping(kind: str, value: Mapping[str, str]) -> Mapping[str, str]:
    if value is _NOTHING:
        return value
    texts: dict[str, str] = dict_of(value, f"{kind}s", {"NAME": "1"})
    for key, text in texts.items():
        if not isinstance(key, str) or not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"{kind} {key!r}={text!r}: name and value must be text; for example {{'NAME': '1'}}"
            )
        if not is_utf8(key) or not is_utf8(text):
            raise InvalidValueError(
                f"{kind} {key!r}={text!r}: name and value must be UTF-8; for example {{'NAME': '1'}}"
            )
    return FrozenDict(texts)


def _env(value: Mapping[str, str]) -> Mapping[str, str]:
    mapping = _text_mapping("environment variable", value)
    for name, text in mapping.items():
        check_env_name(name)
        if "\0" in text:
            raise InvalidValueError(f"environment variable {name}={text!r}: the value must not contain a NUL")
    return mapping


_MOST_IN_VARIABLE = 32 * os.sysconf("SC_PAGE_SIZE")
"""Bytes of a variable with its name, ``=``, and a NUL: the kernel's MAX_ARG_STRLEN, 131072 with pages of 4 KiB."""

_MOST_IN_ENVIRONMENT = 8 * 2**20 // 4
"""Bytes of all variables, each with a pointer of 8 bytes (execve(2), "Limits on size of arguments and environment").

The kernel allows a quarter of the stack's limit and at most 6 MiB, and containers have the usual limit of 8 MiB.
"""


def check_environment(env: Mapping[str, str]) -> None:
    """Refuse variables with which Linux starts no program: execve(2) fails with E2BIG.

    Raises:
        AllocationError: One is too long, or all together are.
    """
    total = 0
    for name, text in env.items():
        size = len(name.encode()) + len(text.encode()) + 2
        if size > _MOST_IN_VARIABLE:
            raise AllocationError(
                f"environment variable {name} would have {size} bytes, and Linux starts no program with more than "
                f"{_MOST_IN_VARIABLE} in one; ask for fewer devices"
            )
        total += size + 8
    if total > _MOST_IN_ENVIRONMENT:
        raise AllocationError(
            f"{len(env)} environment variables would have {total} bytes, and Linux starts no program with more than "
            f"{_MOST_IN_ENVIRONMENT} in all; ask for fewer devices"
        )


def _annotations(value: Mapping[str, str]) -> Mapping[str, str]:
    return _text_mapping("annotation", value)


def tuple_of(kind: type[_T], values: Iterable[_T] | _T, *, package: str = "") -> tuple[_T, ...]:
    """Return values of one kind, or the one that is given; messages call the kind by the package that has it."""
    if isinstance(values, kind):
        return (values,)
    items = tuple(cast("Iterable[_T]", values) if isinstance(values, Iterable) else (values,))
    for item in items:
        if not isinstance(item, kind):
            raise InvalidValueError(f"{item!r}: must be a {package}{kind.__name__}, this is {kind_of(item)}")
    return items


class _Merge(Generic[_T]):
    """One kind of place (variables, container paths, ...): who put what there first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.values: dict[str, _T] = {}
        self._owners: dict[str, str] = {}

    def add(self, owner: str, place: str, value: _T) -> None:
        first = self.values.setdefault(place, value)
        if first is value:
            self._owners.setdefault(place, owner)
        elif first != value:
            differ = f"different values for {self.kind} {place!r}; give"  # not the values: the pod's author reads this
            if self._owners[place] == owner:
                raise EditConflictError(f"device {owner!r} wants {differ} one of them another place in the container")
            devices = f"devices {self._owners[place]!r} and {owner!r}"
            raise EditConflictError(f"{devices} want {differ} equal values, or name a variable in joined_env")


def _device_nodes(value: Iterable[DeviceNode] | DeviceNode) -> tuple[DeviceNode, ...]:
    return tuple_of(DeviceNode, value, package="kdp.")


def _mounts(value: Iterable[Mount] | Mount) -> tuple[Mount, ...]:
    return tuple_of(Mount, value, package="kdp.")


def _hooks(value: Iterable[CdiHook] | CdiHook) -> tuple[CdiHook, ...]:
    return tuple_of(CdiHook, value, package="kdp.")


def _cdi_devices(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(check_cdi_device_name(name) for name in _text_tuple(value))


@attrs.frozen(kw_only=True)
class ContainerEdits:
    """Everything that one or several devices add to a container. Frozen; `adding` returns a changed copy.

    A single value is taken where several are expected, and pairs where a mapping is.

    Attributes:
        env: Environment variables. A pod's own ``env`` wins over them in containerd, so they are no protection.
        device_nodes: Device nodes to create.
        mounts: Bind mounts.
        annotations: CRI container annotations (runtimes read them; they are not the pod's annotations).
        hooks: OCI hooks (CDI only).
        cdi_devices: Qualified names of CDI devices that tools of the vendor describe, as ``nvidia.com/gpu=0``. Those
            that kdp describes itself it adds itself.
    """

    __repr__ = shown

    env: Mapping[str, str] = attrs.field(default=_NOTHING, converter=_env, hash=False)
    device_nodes: tuple[DeviceNode, ...] = attrs.field(default=(), converter=_device_nodes)
    mounts: tuple[Mount, ...] = attrs.field(default=(), converter=_mounts)
    annotations: Mapping[str, str] = attrs.field(default=_NOTHING, converter=_annotations, hash=False)
    hooks: tuple[CdiHook, ...] = attrs.field(default=(), converter=_hooks)
    cdi_devices: tuple[str, ...] = attrs.field(default=(), converter=_cdi_devices)

    @property
    def _may_repeat(self) -> bool:
        """Whether one place can occur twice in these edits alone; names of mappings cannot."""
        return max(len(self.device_nodes), len(self.mounts), len(self.hooks)) > 1

    @classmethod
    def of_node(cls, *paths: AnyPath, permissions: str = "rw") -> ContainerEdits:
        """Return the edits that put these device nodes at the same paths into the container."""
        return cls(device_nodes=[DeviceNode(host_path=os.fspath(p), permissions=permissions) for p in paths])

    def adding(
        self,
        *,
        env: Mapping[str, str] = _NOTHING,
        device_nodes: Iterable[DeviceNode] | DeviceNode = (),
        mounts: Iterable[Mount] | Mount = (),
        annotations: Mapping[str, str] = _NOTHING,
        hooks: Iterable[CdiHook] | CdiHook = (),
        cdi_devices: Iterable[str] = (),
    ) -> ContainerEdits:
        """Return these edits with more in them. A variable or annotation that is there already gets the new value.

        Raises:
            InvalidValueError: One of them is not valid.
        """
        return attrs.evolve(
            self,
            env={**self.env, **_env(env)},
            device_nodes=(*self.device_nodes, *_device_nodes(device_nodes)),
            mounts=(*self.mounts, *_mounts(mounts)),
            annotations={**self.annotations, **_annotations(annotations)},
            hooks=(*self.hooks, *_hooks(hooks)),
            cdi_devices=(*self.cdi_devices, *_cdi_devices(cdi_devices)),
        )

    @classmethod
    def merge(
        cls, edits: Iterable[tuple[str, ContainerEdits]], *, joined_env: Mapping[str, str] | None = None
    ) -> ContainerEdits:
        """Merge the edits of one or several devices into one container's: the only place that knows how.

        Equal is fine. Variables named in ``joined_env`` are joined with their separator, in the order given and
        each value once. Anything else that differs at one place (variable, container path, annotation) is a conflict.

        Args:
            edits: Pairs of a device id, for messages, and its edits.
            joined_env: Variable name to separator, as ``DeviceBackend.joined_env``.

        Raises:
            EditConflictError: The text names the place, both values and both devices, or the one that has both.
            AllocationError: No program can be started with the variables: one of them, or all, are too long.
        """
        pairs = list(edits)
        if len(pairs) == 1 and not pairs[0][1]._may_repeat:
            return pairs[0][1]
        joined = joined_env or {}
        env: _Merge[str] = _Merge("environment variable")
        nodes: _Merge[DeviceNode] = _Merge("device node")
        mounts: _Merge[Mount] = _Merge("mount")
        annotations: _Merge[str] = _Merge("annotation")
        hooks: dict[CdiHook, None] = {}
        cdi_devices: dict[str, None] = {}
        lists: dict[str, dict[str, None]] = {}
        for owner, edit in pairs:
            for name, text in edit.env.items():
                if name in joined:
                    lists.setdefault(name, {})[text] = None
                    env.values[name] = ""  # keeps the variable's place in the order
                else:
                    env.add(owner, name, text)
            for node in edit.device_nodes:
                nodes.add(owner, node.container_path, node)
            for mount in edit.mounts:
                mounts.add(owner, mount.container_path, mount)
            for name, text in edit.annotations.items():
                annotations.add(owner, name, text)
            if edit.hooks:
                hooks.update(dict.fromkeys(edit.hooks))
            if edit.cdi_devices:
                cdi_devices.update(dict.fromkeys(edit.cdi_devices))
        env.values.update({name: joined[name].join(texts) for name, texts in lists.items()})
        check_environment(env.values)
        return cls(
            env=env.values,
            device_nodes=nodes.values.values(),
            mounts=mounts.values.values(),
            annotations=annotations.values,
            hooks=hooks,
            cdi_devices=cdi_devices,
        )
