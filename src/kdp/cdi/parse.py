"""The judge of CDI specs: it refuses what the library of the container runtimes refuses, and nothing else.

`check_spec` judges the document of anybody's file. Its rules are those of the reference library, Go module
tags.cncf.io/container-device-interface 1.1.1, which containerd, CRI-O, and podman use. Both judge the same generated
specs in the tests of a node. `parse_spec` makes values of a file that kdp wrote itself.

The library decodes YAML into Go's types. So a number is text where a text belongs, a fraction loses what is behind its
point, and null is what a missing field is. A null in a list is left out; but among objects of an edit, except devices,
it crashes the library, and is refused here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, get_args

from ..errors import InvalidValueError
from ..model.edits import CdiHook, HookName
from ..model.names import check_cdi_device_name, check_cdi_kind, is_utf8
from ..storage.documents import parse_json
from .model import CdiDevice, CdiEdits, CdiMount, CdiNetDevice, CdiNode, CdiSpec, lowest_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _Reader = Callable[[Any, str], Any]

_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


def check_spec(document: object, *, where: str) -> dict[str, Any]:
    """Return the fields of a spec, each with its type; a field that the document lacks is empty or None.

    Args:
        document: The plain value of a JSON or YAML text.
        where: What messages call the text.

    Raises:
        InvalidValueError: A runtime refuses the spec; the text names the place and the rule.
    """
    spec: dict[str, Any] = _SPEC(document, where)
    needed, said = lowest_version(spec, as_library=True), spec["cdiVersion"]
    if _VERSIONS.index(needed) > _VERSIONS.index(said):
        raise InvalidValueError(f"{where}: cdiVersion {said!r}: the content of the spec needs at least {needed}")
    return spec


def parse_spec(text: str | bytes, *, where: str) -> CdiSpec:
    """Return the spec in a JSON text that kdp wrote, which messages call ``where``.

    What kdp never writes is refused, too: ``type``, ``major``, and ``minor`` of a device node, and ``intelRdt``.

    Raises:
        InvalidValueError: It is not JSON, or a rule is broken; the text names the place and the rule.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InvalidValueError(f"{where}: is no JSON: {error}") from None
    spec = check_spec(document, where=where)
    try:
        return CdiSpec(
            kind=spec["kind"],
            devices=[
                CdiDevice(
                    name=device["name"],
                    edits=_modelled(device["containerEdits"]),
                    annotations=device["annotations"],
                )
                for device in spec["devices"]
            ],
            edits=_modelled(spec["containerEdits"]),
            annotations=spec["annotations"],
        )
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from None


def _modelled(edits: Mapping[str, Any]) -> CdiEdits:
    strange = ["intelRdt"] if edits["intelRdt"] is not None else []
    strange += [name for node in edits["deviceNodes"] for name in ("type", "major", "minor") if node[name]]
    if strange:
        raise InvalidValueError(f"{strange[0]}: kdp does not write this field, so the file is not kdp's")
    return CdiEdits(
        env=edits["env"],
        device_nodes=[
            CdiNode(
                path=node["path"],
                host_path=node["hostPath"] or None,
                permissions=node["permissions"] or "rwm",
                file_mode=node["fileMode"],
                uid=node["uid"],
                gid=node["gid"],
            )
            for node in edits["deviceNodes"]
        ],
        mounts=[
            CdiMount(
                host_path=mount["hostPath"],
                container_path=mount["containerPath"],
                options=mount["options"],
                type=mount["type"] or None,
            )
            for mount in edits["mounts"]
        ],
        hooks=[
            CdiHook(
                name=hook["hookName"], path=hook["path"], args=hook["args"], env=hook["env"], timeout=hook["timeout"]
            )
            for hook in edits["hooks"]
        ],
        net_devices=[
            CdiNetDevice(host_interface_name=device["hostInterfaceName"], name=device["name"])
            for device in edits["netDevices"]
        ],
        additional_gids=edits["additionalGids"],
    )


# -- types -------------------------------------------------------------------------------------------------------------
# A reader takes a value, None for a field that is missing, and the place of it; it returns the value in its type.


def _refused(value: object, where: str, rule: str) -> InvalidValueError:
    said = f"is missing; it {rule}" if value is None else f"{rule}, this is {json.dumps(value)[:40]}"
    return InvalidValueError(f"{where}: {said}")


def _object(**fields: _Reader) -> _Reader:
    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _refused(value, where, "must be an object")
        said: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        if strange := sorted(said.keys() - fields.keys()):
            raise InvalidValueError(f"{where}: unknown field {strange[0]!r}; known are {', '.join(sorted(fields))}")
        return {name: reader(said.get(name), f"{where}: {name}") for name, reader in fields.items()}

    return read


def _optional(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _list(reader: _Reader, *, takes_null: bool = True) -> _Reader:
    def read(value: Any, where: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise _refused(value, where, "must be a list")
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [
            reader(item, f"{where}[{number}]")
            for number, item in enumerate(items)
            if item is not None or not takes_null
        ]

    return read


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise _refused(value, where, "must be text")  # pyright: ignore[reportUnknownArgumentType]
    text = value if isinstance(value, str) else json.dumps(value)
    if not is_utf8(text):
        raise _refused(value, where, "must be text that UTF-8 can carry")
    return text


def _texts(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _refused(value, where, "must be an object")
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return {_text(name, where): _text(text, f"{where}: {name}") for name, text in fields.items()}


def _number(least: int, most: int) -> _Reader:
    def read(value: Any, where: str) -> int | None:
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= int(value) <= most:
            raise _refused(value, where, f"must be a whole number from {least} to {most}")
        return int(value)

    return read


_FLAGS: Final = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}


def _flag(value: Any, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, str) or value not in _FLAGS:
        raise _refused(value, where, "must be true or false")
    return _FLAGS[value]


# -- rules -------------------------------------------------------------------------------------------------------------


def _given(value: Any, where: str) -> str:
    text = _text(value, where)
    if not text:
        raise _refused(value, where, "must be text that is not empty")
    return text


def _one_of(*words: str) -> _Reader:
    def read(value: Any, where: str) -> str:
        text = _text(value, where)
        if text not in words:
            raise _refused(value, where, f"must be one of {', '.join(filter(None, words))}")
        return text

    return read


def _version(value: Any, where: str) -> str:
    text = _text(value, where).removeprefix("v")
    if text not in _VERSIONS:
        raise _refused(value, where, f"must be one of {', '.join(_VERSIONS)}")
    return text


def _kind(value: Any, where: str) -> str:
    text = _given(value, where)
    try:
        return check_cdi_kind(text)
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from None


def _name(value: Any, where: str) -> str:
    text = _given(value, where)
    try:
        check_cdi_device_name(f"a/a={text}")
    except InvalidValueError:
        rule = "must be of letters, digits, '-', '_', '.', and ':', with a letter or a digit at both ends"
        raise _refused(value, where, rule) from None
    return text


def _variable(value: Any, where: str) -> str:
    text = _text(value, where)
    if text.find("=") <= 0:
        raise _refused(value, where, "must be NAME=VALUE")
    return text


def _permissions(value: Any, where: str) -> str:
    text = _text(value, where)
    if text != "none" and set(text) - set("rwm"):
        raise _refused(value, where, "must be of 'rwm', or 'none'")
    return text


def _class_of_service(value: Any, where: str) -> str:
    text = _text(value, where)
    if text != "/" and (len(text.encode()) >= 4096 or text in (".", "..") or re.search("[/\n]", text)):
        raise _refused(value, where, "must be the name of a directory, or '/'")
    return text


def _net_devices(value: Any, where: str) -> list[dict[str, str]]:
    devices: list[dict[str, str]] = _list(_NET_DEVICE, takes_null=False)(value, where)
    for name in ("hostInterfaceName", "name"):
        _differ([device[name] for device in devices], where, name)
    return devices


def _devices(value: Any, where: str) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = _list(_DEVICE)(value, where)
    if not devices:
        raise _refused(value, where, "must be at least one device")
    for number, device in enumerate(devices):
        if not _does_something(device["containerEdits"]):
            raise InvalidValueError(
                f"{where}[{number}]: containerEdits: must add something to a container; give it a variable"
            )
    _differ([device["name"] for device in devices], where, "name")
    return devices


def _does_something(edits: Mapping[str, Any]) -> bool:
    return any(each is not None and each != [] for each in edits.values())


def _differ(names: list[str], where: str, field: str) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidValueError(f"{where}[{number}]: {field} {name!r}: is there twice; names must differ")


_INT: Final = _number(-(2**63), 2**63 - 1)
_UINT32: Final = _number(0, 2**32 - 1)

_NODE: Final = _object(
    path=_given,
    hostPath=_text,
    type=_one_of("", "b", "c", "u", "p"),
    major=_INT,
    minor=_INT,
    fileMode=_UINT32,
    permissions=_permissions,
    uid=_UINT32,
    gid=_UINT32,
)
_MOUNT: Final = _object(hostPath=_given, containerPath=_given, options=_list(_text), type=_text)
_NET_DEVICE: Final = _object(hostInterfaceName=_given, name=_given)
_HOOK: Final = _object(
    hookName=_one_of(*get_args(HookName)), path=_given, args=_list(_text), env=_list(_variable), timeout=_INT
)
_RDT: Final = _object(
    closID=_class_of_service,
    l3CacheSchema=_text,
    memBwSchema=_text,
    schemata=_optional(_list(_text)),
    enableMonitoring=_flag,
)
_EDITS: Final = _object(
    env=_list(_variable),
    deviceNodes=_list(_NODE, takes_null=False),
    netDevices=_net_devices,
    hooks=_list(_HOOK, takes_null=False),
    mounts=_list(_MOUNT, takes_null=False),
    intelRdt=_optional(_RDT),
    additionalGids=_list(_UINT32),
)


def _edits(value: Any, where: str) -> dict[str, Any]:
    edits: dict[str, Any] = _EDITS({} if value is None else value, where)
    return edits


_DEVICE: Final = _object(name=_name, annotations=_texts, containerEdits=_edits)
_SPEC: Final = _object(cdiVersion=_version, kind=_kind, annotations=_texts, devices=_devices, containerEdits=_edits)
