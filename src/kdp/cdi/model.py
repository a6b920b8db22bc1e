"""A CDI spec as values: each checks itself, and the whole knows the lowest version that may carry it.

Runtimes refuse versions newer than themselves (podman 4 takes at most 0.5.0, containerd 1.7 at most 0.8.0, containerd
2.1 at most 1.0.0), so a spec must say no more than it needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from ..errors import InvalidValueError
from ..model.edits import CdiHook, tuple_of
from ..model.names import check_absolute_path, check_cdi_device_name, check_cdi_kind, check_env_variable

_MOST_UINT32 = 2**32 - 1

_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON takes in a text, and the YAML reader of the reference library refuses or folds; it takes their escapes."""


def _container_path(value: str) -> str:
    return check_absolute_path(value, kind="container path")


def _host_path(value: str) -> str:
    return check_absolute_path(value, kind="host path")


def _permissions(value: str) -> str:
    if not value or set(value) - set("rwm"):
        raise InvalidValueError(f"CDI device node permissions {value!r}: must be of 'rwm'; for example 'rw'")
    return value


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


def _env(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(check_env_variable(variable) for variable in values)


def _uint32(value: int, *, kind: str, least: int = 0, example: str) -> int:
    """Check what the reference library reads into 32 bits without a sign."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_UINT32:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"CDI {kind} {value!r}: must be a whole number from {least} to {_MOST_UINT32}; for example {example}"
        )
    return value


def _optional_uint32(kind: str, example: str) -> Callable[[object, object, int | None], None]:
    def check(_node: object, _field: object, value: int | None) -> None:
        if value is not None:
            _uint32(value, kind=f"device node {kind}", example=example)

    return check


def _mapping(value: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(value))


def _present(**fields: object) -> dict[str, Any]:
    """Return the fields that say something: an empty list and an unset value are left out."""
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


@attrs.frozen(kw_only=True)
class CdiNode:
    """A device node. The runtime takes major and minor from ``host_path``, and fails if that is gone.

    Attributes:
        path: In the container.
        host_path: On the node, no link (containerd refuses links); None: the same path.
        permissions: What the cgroup allows, of ``rwm``.
        file_mode: Permission bits; None: the runtime's choice, which is 0666 in containerd.
        uid: Owner; None: root.
        gid: Group; None: root.
    """

    path: str = attrs.field(converter=_container_path)
    host_path: str | None = attrs.field(default=None, converter=attrs.converters.optional(_host_path))
    permissions: str = attrs.field(default="rw", converter=_permissions)
    file_mode: int | None = attrs.field(default=None, validator=_optional_uint32("file mode", "0o660"))
    uid: int | None = attrs.field(default=None, validator=_optional_uint32("uid", "1000"))
    gid: int | None = attrs.field(default=None, validator=_optional_uint32("gid", "44"))

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return _present(
            path=self.path,
            hostPath=None if self.host_path == self.path else self.host_path,
            permissions=self.permissions,
            fileMode=self.file_mode,
            uid=self.uid,
            gid=self.gid,
        )


@attrs.frozen(kw_only=True)
class CdiMount:
    """A mount.

    Attributes:
        host_path: On the node.
        container_path: In the container.
        options: Of mount(8), for example ``ro``, ``bind``.
        type: File system type; None: a bind mount.
    """

    host_path: str = attrs.field(converter=_host_path)
    container_path: str = attrs.field(converter=_container_path)
    options: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    type: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return _present(
            hostPath=self.host_path, containerPath=self.container_path, options=list(self.options), type=self.type
        )


def _interface_name(value: str) -> str:
    if not isinstance(value, str) or not value:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"CDI network interface {value!r}: must be text and not empty; for example 'net1'")
    return value


@attrs.frozen(kw_only=True)
class CdiNetDevice:
    """A network interface that moves into the container's network namespace.

    Attributes:
        host_interface_name: Its name on the node.
        name: Its name in the container.
    """

    host_interface_name: str = attrs.field(converter=_interface_name)
    name: str = attrs.field(converter=_interface_name)

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return {"hostInterfaceName": self.host_interface_name, "name": self.name}


def _nodes(values: Iterable[CdiNode]) -> tuple[CdiNode, ...]:
    return tuple_of(CdiNode, values)


def _mounts(values: Iterable[CdiMount]) -> tuple[CdiMount, ...]:
    return tuple_of(CdiMount, values)


def _hooks(values: Iterable[CdiHook]) -> tuple[CdiHook, ...]:
    return tuple_of(CdiHook, values)


def _net_devices(values: Iterable[CdiNetDevice]) -> tuple[CdiNetDevice, ...]:
    devices = tuple_of(CdiNetDevice, values)
    _differ("on the node", [device.host_interface_name for device in devices])
    _differ("in the container", [device.name for device in devices])
    return devices


def _differ(where: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidValueError(
                f"CDI network interface {name!r}: is there twice {where}; names must differ; valid are 'net1' and "
                "'net2'"
            )
        seen.add(name)


def _gids(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(_uint32(value, kind="additional group", least=1, example="44") for value in values)


@attrs.frozen(kw_only=True)
class CdiEdits:
    """What a device, or every device of a spec, adds to a container.

    Attributes:
        env: ``NAME=VALUE``.
        device_nodes: Device nodes.
        mounts: Mounts.
        hooks: OCI hooks.
        net_devices: Network interfaces; their names differ, on the node and in the container.
        additional_gids: Groups of the container's process; never 0.
    """

    env: tuple[str, ...] = attrs.field(default=(), converter=_env)
    device_nodes: tuple[CdiNode, ...] = attrs.field(default=(), converter=_nodes)
    mounts: tuple[CdiMount, ...] = attrs.field(default=(), converter=_mounts)
    hooks: tuple[CdiHook, ...] = attrs.field(default=(), converter=_hooks)
    net_devices: tuple[CdiNetDevice, ...] = attrs.field(default=(), converter=_net_devices)
    additional_gids: tuple[int, ...] = attrs.field(default=(), converter=_gids)

    def __bool__(self) -> bool:
        return any((self.env, self.device_nodes, self.mounts, self.hooks, self.net_devices, self.additional_gids))

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return _present(
            env=list(self.env),
            deviceNodes=[node.as_json() for node in self.device_nodes],
            netDevices=[device.as_json() for device in self.net_devices],
            mounts=[mount.as_json() for mount in self.mounts],
            hooks=[_hook(hook) for hook in self.hooks],
            additionalGids=list(self.additional_gids),
        )


def _hook(hook: CdiHook) -> dict[str, Any]:
    return _present(hookName=hook.name, path=hook.path, args=list(hook.args), env=list(hook.env), timeout=hook.timeout)


@attrs.frozen(kw_only=True)
class CdiDevice:
    """One device of a spec.

    Attributes:
        name: The part behind ``=``.
        edits: Not empty: runtimes refuse a device that does nothing.
        annotations: For readers of the spec.
    """

    name: str
    edits: CdiEdits
    annotations: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_mapping, hash=False)

    def __attrs_post_init__(self) -> None:
        if not self.edits:
            raise InvalidValueError(f"CDI device {self.name!r}: must add something to a container; give it a variable")

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return _present(name=self.name, annotations=dict(self.annotations), containerEdits=self.edits.as_json())


def _devices(values: Iterable[CdiDevice]) -> tuple[CdiDevice, ...]:
    return tuple_of(CdiDevice, values)


@attrs.frozen(kw_only=True)
class CdiSpec:
    """A CDI spec: devices of one kind.

    Attributes:
        kind: ``vendor/class``.
        devices: At least one; names differ.
        edits: For a container that gets any of them.
        annotations: For readers of the spec.

    Raises:
        InvalidValueError: A rule of the specification is broken; the text names the value and the rule.
    """

    kind: str = attrs.field(converter=check_cdi_kind)
    devices: tuple[CdiDevice, ...] = attrs.field(converter=_devices)
    edits: CdiEdits = attrs.field(factory=CdiEdits)
    annotations: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_mapping, hash=False)

    def __attrs_post_init__(self) -> None:
        if not self.devices:
            raise InvalidValueError(f"CDI spec {self.kind}: must have at least one device")
        seen: set[str] = set()
        for device in self.devices:
            check_cdi_device_name(f"{self.kind}={device.name}")
            if device.name in seen:
                raise InvalidValueError(
                    f"CDI spec {self.kind}: device {device.name!r} is there twice; names must differ"
                )
            seen.add(device.name)

    @property
    def version(self) -> str:
        """The lowest ``cdiVersion`` that carries it; 1.1.0 where network interfaces move."""
        return lowest_version(self._body())

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        body = self._body()
        return {"cdiVersion": lowest_version(body), **body}

    def _body(self) -> dict[str, Any]:
        return _present(
            kind=self.kind,
            annotations=dict(self.annotations),
            devices=[device.as_json() for device in self.devices],
            containerEdits=self.edits.as_json(),
        )

    def encode(self) -> bytes:
        """Return the bytes of its file."""
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False)
        return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def lowest_version(spec: Mapping[str, Any], *, as_library: bool = False) -> str:
    """Return the lowest version that may have what a spec says; 0.8.0 and 1.0.0 added nothing.

    Args:
        spec: The spec as JSON has it.
        as_library: Whether it is what the reference library thinks. That looks for host paths and types of mounts in
            the spec's own edits and in those of the last device: its module is written in Go 1.21 or older, where a
            loop has one variable, and it keeps pointers to that.
    """
    devices = spec["devices"]
    own: Mapping[str, Any] = spec.get("containerEdits") or {}
    edits: list[Mapping[str, Any]] = [own, *(device["containerEdits"] for device in devices)]
    rdts: list[Mapping[str, Any]] = [each["intelRdt"] for each in edits if each.get("intelRdt") is not None]
    if any(rdt["schemata"] is not None or rdt["enableMonitoring"] for rdt in rdts):
        return "1.1.0"
    if any(each.get("netDevices") for each in edits):
        return "1.1.0"
    if rdts or any(each.get("additionalGids") for each in edits):
        return "0.7.0"
    annotated = any(each.get("annotations") for each in (spec, *devices))
    if annotated or "." in spec["kind"].partition("/")[2]:
        return "0.6.0"
    if any(device["name"][0].isdigit() for device in devices):
        return "0.5.0"
    edits = [own, devices[-1]["containerEdits"]] if as_library else edits
    if any(node.get("hostPath") for each in edits for node in each.get("deviceNodes", ())):
        return "0.5.0"
    return "0.4.0" if any(mount.get("type") for each in edits for mount in each.get("mounts", ())) else "0.3.0"
