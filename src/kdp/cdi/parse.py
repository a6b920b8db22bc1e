"""A CDI file's text as a `CdiSpec`: what kdp wrote earlier, and what others wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from ..model.edits import Hook
from ..model.names import is_utf8
from ..storage.documents import parse_json
from .model import CdiDevice, CdiEdits, CdiMount, CdiNetDevice, CdiNode, CdiSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_READABLE = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


def parse_spec(text: str | bytes, *, where: str) -> CdiSpec:
    """Return the spec in a JSON text, which messages call ``where``.

    Fields that the model does not have are refused, as runtimes refuse them; so are ``type``, ``major`` and ``minor``
    of a device node, which kdp never writes, and ``intelRdt``.

    Raises:
        InvalidValueError: No JSON, or a rule of the specification is broken; the text names the place and the rule.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InvalidValueError(f"{where}: is no JSON: {error}") from None
    spec = _object(document, where, required={"cdiVersion", "kind", "devices"}, known={"containerEdits", "annotations"})
    version = spec["cdiVersion"]
    if version not in _READABLE:
        raise InvalidValueError(f"{where}: cdiVersion {version!r}: must be one of {', '.join(_READABLE)}")
    try:
        found = CdiSpec(
            kind=_text(spec["kind"], f"{where}: kind"),
            devices=_each(spec["devices"], f"{where}: devices", _device),
            edits=_edits(spec.get("containerEdits", {}), f"{where}: containerEdits"),
            annotations=_texts(spec.get("annotations", {}), f"{where}: annotations"),
        )
    except InvalidValueError as error:
        raise error if str(error).startswith(where) else InvalidValueError(f"{where}: {error}") from None
    if _READABLE.index(found.version) > _READABLE.index(version):
        raise InvalidValueError(f"{where}: cdiVersion {version!r}: what the spec says needs at least {found.version}")
    return found


def _object(value: object, where: str, *, required: set[str], known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"{where}: must be an object, this is {json.dumps(value)[:40]}")
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    if missing := sorted(required - fields.keys()):
        raise InvalidValueError(f"{where}: {missing[0]} is missing")
    if strange := sorted(fields.keys() - required - known):
        raise InvalidValueError(
            f"{where}: unknown field {strange[0]!r}; known are {', '.join(sorted(required | known))}"
        )
    return fields


def _each(value: object, where: str, parse: Callable[[Any, str], Any]) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidValueError(f"{where}: must be a list, this is {json.dumps(value)[:40]}")
    items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    return [parse(item, f"{where}[{number}]") for number, item in enumerate(items)]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{where}: must be text, this is {json.dumps(value)[:40]}")
    if not is_utf8(value):
        raise InvalidValueError(f"{where}: must be text that UTF-8 can carry, this is {json.dumps(value)[:40]}")
    return value


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidValueError(f"{where}: must be a whole number, at least 0, this is {json.dumps(value)[:40]}")
    return value


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"{where}: must be an object, this is {json.dumps(value)[:40]}")
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return {_text(name, where): _text(text, f"{where}: {name}") for name, text in fields.items()}


def _device(value: object, where: str) -> CdiDevice:
    device = _object(value, where, required={"name", "containerEdits"}, known={"annotations"})
    return CdiDevice(
        name=_text(device["name"], f"{where}: name"),
        edits=_edits(device["containerEdits"], f"{where}: containerEdits"),
        annotations=_texts(device.get("annotations", {}), f"{where}: annotations"),
    )


def _edits(value: object, where: str) -> CdiEdits:
    lists = {"env", "deviceNodes", "mounts", "hooks", "netDevices", "additionalGids"}
    edits = _object(value, where, required=set(), known=lists)
    readers = (_text, _node, _mount, _hook, _net_device, _number)
    names = ("env", "deviceNodes", "mounts", "hooks", "netDevices", "additionalGids")
    env, nodes, mounts, hooks, net_devices, gids = (
        _each(edits.get(name, []), f"{where}: {name}", reader) for name, reader in zip(names, readers, strict=True)
    )
    return CdiEdits(
        env=env, device_nodes=nodes, mounts=mounts, hooks=hooks, net_devices=net_devices, additional_gids=gids
    )


def _node(value: object, where: str) -> CdiNode:
    optional = {"hostPath", "permissions", "fileMode", "uid", "gid"}
    node = _object(value, where, required={"path"}, known=optional)
    numbers = {name: _number(node[name], f"{where}: {name}") for name in ("fileMode", "uid", "gid") if name in node}
    return CdiNode(
        path=_text(node["path"], f"{where}: path"),
        host_path=_text(node["hostPath"], f"{where}: hostPath") if "hostPath" in node else None,
        permissions=_text(node.get("permissions", "rwm"), f"{where}: permissions"),
        file_mode=numbers.get("fileMode"),
        uid=numbers.get("uid"),
        gid=numbers.get("gid"),
    )


def _mount(value: object, where: str) -> CdiMount:
    mount = _object(value, where, required={"hostPath", "containerPath"}, known={"options", "type"})
    return CdiMount(
        host_path=_text(mount["hostPath"], f"{where}: hostPath"),
        container_path=_text(mount["containerPath"], f"{where}: containerPath"),
        options=_each(mount.get("options", []), f"{where}: options", _text),
        type=_text(mount["type"], f"{where}: type") if "type" in mount else None,
    )


def _hook(value: object, where: str) -> Hook:
    hook = _object(value, where, required={"hookName", "path"}, known={"args", "env", "timeout"})
    return Hook(
        name=hook["hookName"],
        path=_text(hook["path"], f"{where}: path"),
        args=_each(hook.get("args", []), f"{where}: args", _text),
        env=_each(hook.get("env", []), f"{where}: env", _text),
        timeout=_number(hook["timeout"], f"{where}: timeout") if "timeout" in hook else None,
    )


def _net_device(value: object, where: str) -> CdiNetDevice:
    device = _object(value, where, required={"hostInterfaceName", "name"}, known=set())
    return CdiNetDevice(
        host_interface_name=_text(device["hostInterfaceName"], f"{where}: hostInterfaceName"),
        name=_text(device["name"], f"{where}: name"),
    )
