"""What the admin wants, read from YAML and checked completely: a `Config` that exists is valid.

Field names inside a resource are those of squat/generic-device-plugin, so that its groups can be moved as they are.
Every error is one sentence with file, line, field, value, rule and a valid example. The README has the table of all
fields.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Literal, TypedDict

import attrs

import kdp

from .document import Item, parse
from .pattern import Pattern
from .template import Template

MAX_COUNT = 10_000
"""More would come near the 4 MiB that the kubelet takes in one message."""

PathType = Literal["Device", "Mount", "Condition"]

_COMMON = frozenset({"path", "name", "node", "resource", "replica"})
"""Placeholders of every group: see the README's table."""

_USB = frozenset({"vendor", "product", "serial", "port"})
_USB_NUMBER = re.compile(r"[0-9a-fA-F]{4}\Z")
_USB_PORT = re.compile(r"\d+-\d+(\.\d+)*")


@attrs.frozen(kw_only=True)
class _Member:
    """A node (or file, or directory) that each device of a group consists of.

    Attributes:
        label: How messages name it.
        mount_path: Where the container finds it, with its name behind a slash at the end; None: where the node has it.
        permissions: What the container may do, of ``rwm``.
        limit: How many devices of the group may have the same one.
        shared: Whether devices of other groups may have the same one, too.
        optional: Whether a device is complete without it.
        every: Whether each device gets all that match, not one of them.
        absent: Whether there is a device only while nothing matches.
    """

    label: str
    mount_path: Template | None
    permissions: str
    limit: int
    shared: bool
    optional: bool
    every: bool
    absent: bool

    @property
    def is_exclusive(self) -> bool:
        """Whether only one device of the group may have the same one."""
        return self.limit == 1 and not self.every

    @property
    def makes_devices(self) -> bool:
        """Whether each one that is found can be a device of its own."""
        return self.is_exclusive and not self.optional and not self.absent


@attrs.frozen(kw_only=True)
class PathMember(_Member):
    """A member found by its path.

    Attributes:
        pattern: Which paths.
        type: Whether it is a device node, a file or directory to mount, or a condition: something that must be
            there, as a driver's directory in sysfs, and of which the container gets nothing.
        read_only: Whether a mount may only be read.
    """

    pattern: Pattern
    type: PathType
    read_only: bool

    @property
    def is_node(self) -> bool:
        """Whether it is a device node."""
        return self.type == "Device"

    @property
    def is_one_optional(self) -> bool:
        """Whether it is one path that may be missing, and that the container gets."""
        return self.pattern.is_plain and self.optional and self.is_exclusive and self.type != "Condition"

    @property
    def keys(self) -> frozenset[str]:
        """Names of captures that must be equal in members that belong together."""
        return self.pattern.keys

    @property
    def captures(self) -> frozenset[str]:
        """Names of placeholders that it fills."""
        return self.pattern.captures


@attrs.frozen(kw_only=True)
class UsbMember(_Member):
    """A member found by its USB numbers.

    Attributes:
        vendor: Four lower-case hexadecimal digits.
        product: The same; None: any.
        serial: The serial number; None: any.
        port: The kernel's name of the port, as ``1-1.2``; None: any.
    """

    vendor: str
    product: str | None
    serial: str | None
    port: str | None

    @property
    def is_node(self) -> bool:
        """Whether it is a device node."""
        return True

    @property
    def keys(self) -> frozenset[str]:
        """Names of captures that must be equal in members that belong together: none."""
        return frozenset()

    @property
    def captures(self) -> frozenset[str]:
        """Names of placeholders that it fills."""
        return _USB


def is_exclusive_node(member: PathMember | UsbMember, count: int) -> bool:
    """Return whether a member is a device node that no device of another group may have, in a group with this count."""
    return member.is_node and member.is_exclusive and not member.shared and count == 1


@attrs.frozen(kw_only=True)
class Group:
    """How the devices of a resource look: one for each set of matching members, ``count`` times.

    Attributes:
        where: The place in the file, for messages.
        members: What each device consists of.
        anchor: The member that makes the devices: as many as are found of it. Index into ``members``.
        is_any: Whether all members are optional: there is one device while one of them is there.
        id: The device id; None: made of the resource and the anchor's name.
        count: How many containers may have each device.
        env: Environment variables.
        annotations: CRI annotations.
    """

    where: str = attrs.field(eq=False)
    members: tuple[PathMember | UsbMember, ...]
    anchor: int
    is_any: bool
    id: Template | None
    count: int
    env: Mapping[str, Template]
    annotations: Mapping[str, Template]

    @property
    def captures(self) -> frozenset[str]:
        """Names of placeholders that its members fill."""
        return frozenset[str]().union(*(member.captures for member in self.members))


@attrs.frozen(kw_only=True)
class Resource:
    """An extended resource.

    Attributes:
        name: Its name, as ``example.com/serial``.
        groups: How its devices look.
    """

    name: str
    groups: tuple[Group, ...]


@attrs.frozen(kw_only=True)
class Config:
    """The whole file.

    Attributes:
        resources: The resources.
        joined_env: Environment variables that join when a container gets several devices, with their separators.
    """

    resources: tuple[Resource, ...]
    joined_env: Mapping[str, str]


def read(text: str, file: str) -> Config:
    """Read a configuration.

    Args:
        text: The YAML text.
        file: Its name, for messages.

    Raises:
        kdp.ConfigurationError: One sentence: file, line, field, value, rule, valid example.
    """
    fields = parse(text, file).fields({"domain", "resources", "devices"}, "resources: [...]")
    domain = None if "domain" not in fields else fields["domain"].text("example.com")
    if "devices" in fields and "resources" in fields:
        raise fields["devices"].error("stands beside resources, and is another name of it; put all under one")
    listed = fields.get("resources") or fields.get("devices")
    if listed is None:
        raise kdp.ConfigurationError(f"{file}: resources: is missing; for example resources: [{{name: ...}}]")
    resources: dict[str, Resource] = {}
    joined: dict[str, str] = {}
    exclusive: dict[str, str] = {}
    for item in listed.items("- name: example.com/serial"):
        resource = _resource(item, domain, joined, exclusive)
        if resource.name in resources:
            raise item.error(f"{resource.name!r} is there twice; put the groups of both under one name")
        resources[resource.name] = resource
    return Config(resources=tuple(resources.values()), joined_env=joined)


def _resource(item: Item, domain: str | None, joined: dict[str, str], exclusive: dict[str, str]) -> Resource:
    fields = item.fields({"name", "groups", "joinedEnv"}, "{name: example.com/serial, groups: [...]}")
    if "name" not in fields:
        raise item.error("has no name; for example name: example.com/serial")
    name = fields["name"].text("example.com/serial")
    if "/" not in name:
        if domain is None:
            raise fields["name"].refuse("has no domain, and the file has no 'domain' field", f"example.com/{name}")
        name = f"{domain}/{name}"
    try:
        kdp.Device(id="x", resource=name)
    except kdp.InvalidValueError as error:
        raise fields["name"].error(str(error)) from error
    if "groups" not in fields:
        raise item.error("has no groups; for example groups: [{paths: [{path: /dev/ttyUSB*}]}]")
    groups = tuple(_group(group, exclusive) for group in fields["groups"].items("- paths: [{path: /dev/ttyUSB*}]"))
    separators = (
        {key: value.any_text(",") for key, value in fields["joinedEnv"].mapping("{PORTS: ','}").items()}
        if ("joinedEnv" in fields)
        else {}
    )
    for variable, template in itertools.chain.from_iterable(group.env.items() for group in groups):
        # Devices of one container that want different values would be refused, and a value with a placeholder is made
        # to differ; so it joins unless told how.
        if template.fields - {"resource"}:
            separators.setdefault(variable, ",")
    for variable, separator in separators.items():
        if joined.setdefault(variable, separator) != separator:
            raise item.error(
                f"joins {variable} with {separator!r}, another resource with {joined[variable]!r}; a variable has one "
                "separator in a file"
            )
    return Resource(name=name, groups=groups)


def _group(item: Item, exclusive: dict[str, str]) -> Group:
    fields = item.fields({"id", "count", "env", "annotations", "paths", "usb"}, "{paths: [{path: /dev/ttyUSB*}]}")
    members: list[PathMember | UsbMember] = []
    if "paths" in fields:
        members += [_path(path) for path in fields["paths"].items("- path: /dev/ttyUSB*")]
    if "usb" in fields:
        members += [_usb(usb) for usb in fields["usb"].items("- {vendor: 1a86, product: '7523'}")]
    if not members:
        raise item.error("has neither paths nor usb; for example paths: [{path: /dev/ttyUSB*}]")
    anchors = [i for i, member in enumerate(members) if member.makes_devices]
    is_any = not anchors and all(isinstance(member, PathMember) and member.is_one_optional for member in members)
    if is_any:
        anchors = [0]
    if not anchors:
        raise item.error(
            "has no member that makes devices: one must have limit 1 and be neither optional nor all, or all must be "
            "optional paths without wildcards; for example {path: /dev/dri/renderD*}"
        )
    for member, place in zip(members, _places(fields), strict=True):
        if member.absent and (unknown := sorted(member.keys - members[anchors[0]].keys)):
            raise place.error(
                f"names the capture {unknown[0]!r}, which {members[anchors[0]].label} does not name, so no device is "
                "compared by it; leave the capture out"
            )
    known = _COMMON.union(*(member.captures for member in members))
    for member, place in zip(members, _places(fields), strict=True):
        if member.mount_path is not None:
            _check(place, member.mount_path, known)
    count = fields["count"].number(MAX_COUNT, "10") if "count" in fields else 1
    for member, place in zip(members, fields["paths"].items("") if "paths" in fields else (), strict=False):
        if isinstance(member, PathMember) and member.pattern.is_plain and is_exclusive_node(member, count):
            first = exclusive.setdefault(member.pattern.plain, item.where)
            if first != item.where:
                raise place.error(
                    f"{member.label} is a device node of {first}, too, so two containers could be given one device; "
                    "write shared: true beside it, or give the group a count"
                )
    return Group(
        where=item.where,
        members=tuple(members),
        anchor=anchors[0],
        is_any=is_any,
        id=_template(fields["id"], "{name}", known) if "id" in fields else None,
        count=count,
        env=_texts(fields["env"], known, env=True) if "env" in fields else {},
        annotations=_texts(fields["annotations"], known, env=False) if "annotations" in fields else {},
    )


def _places(fields: Mapping[str, Item]) -> list[Item]:
    """Return the places of the members' ``mountPath``, or of the members that have none."""
    items = [item for key in ("paths", "usb") if key in fields for item in fields[key].items("")]
    return [item.mapping("").get("mountPath", item) for item in items]


def _texts(item: Item, known: frozenset[str], *, env: bool) -> dict[str, Template]:
    found: dict[str, Template] = {}
    for name, value in item.mapping("{SERIAL_PORT: '{path}'}").items():
        if env:
            try:
                kdp.ContainerEdits(env={name: ""})
            except kdp.InvalidValueError as error:
                raise value.error(str(error)) from error
        template = Template(value.any_text("'{path}'"))
        _check(value, template, known)
        found[name] = template
    return found


def _check(item: Item, template: Template, known: frozenset[str]) -> None:
    rule = template.check(known)
    if rule is not None:
        raise item.refuse(rule, "'/dev/{name}'")


def _template(item: Item, example: str, known: frozenset[str]) -> Template:
    template = Template(item.text(example))
    _check(item, template, known)
    return template


_ANY_MEMBER = frozenset({"mountPath", "permissions", "limit", "shared", "optional", "all"})


_TYPES: Mapping[str, PathType] = {"Device": "Device", "Mount": "Mount", "Condition": "Condition"}
_BELONGS_TO = {
    "permissions": ("Device",),
    "readOnly": ("Mount",),
    "mountPath": ("Device", "Mount"),
    "absent": ("Condition",),
}


def _path(item: Item) -> PathMember:
    fields = item.fields(_ANY_MEMBER | {"path", "regex", "type", "readOnly", "absent"}, "{path: /dev/ttyUSB*}")
    if "path" not in fields and "regex" not in fields:
        raise item.error("has neither path nor regex; for example {path: /dev/ttyUSB*}")
    if "path" in fields and "regex" in fields:
        raise fields["regex"].error("stands beside path, and a member has one of them; remove one")
    field = fields.get("path") or fields["regex"]
    example = "/dev/ttyUSB*" if "path" in fields else r"'/dev/ttyUSB(?P<n>\d+)'"
    text = field.text(example)
    try:
        pattern = Pattern.shell(text) if "path" in fields else Pattern.regular(text)
    except ValueError as error:
        raise field.refuse(str(error), example) from error
    reserved = sorted(pattern.keys & (_COMMON | _USB))
    if reserved:
        raise field.refuse(f"must not name a capture {reserved[0]!r}, which is a placeholder already", example)
    kind = fields["type"].choice(*_TYPES) if "type" in fields else "Device"
    for name, types in _BELONGS_TO.items():
        if name in fields and kind not in types:
            raise fields[name].error(f"belongs to type {' or '.join(types)}, this is a {kind}; remove one of the two")
    return PathMember(
        pattern=pattern,
        type=_TYPES[kind],
        read_only="readOnly" in fields and fields["readOnly"].flag(),
        **_common(fields, text),
    )


def _usb(item: Item) -> UsbMember:
    fields = item.fields(_ANY_MEMBER | {"vendor", "product", "serial", "port"}, "{vendor: 1a86, product: '7523'}")
    numbers: dict[str, str] = {}
    for name in ("vendor", "product"):
        if name in fields:
            numbers[name] = fields[name].text("1a86").lower().removeprefix("0x")
            if not _USB_NUMBER.match(numbers[name]):
                raise fields[name].refuse("must be four hexadecimal digits, as lsusb prints them", "1a86")
    if "vendor" not in numbers:
        raise item.error("has no vendor; for example {vendor: 1a86, product: '7523'}")
    serial = fields["serial"].text("A50285BI") if "serial" in fields else None
    port = fields["port"].text("1-1.2") if "port" in fields else None
    if port is not None and not _USB_PORT.fullmatch(port):
        raise fields["port"].refuse("must be a port as the directories of /sys/bus/usb/devices are called", "1-1.2")
    label = ":".join(("USB device " + numbers["vendor"], numbers.get("product", "*"), *([serial] if serial else [])))
    return UsbMember(
        vendor=numbers["vendor"],
        product=numbers.get("product"),
        serial=serial,
        port=port,
        **_common(fields, label if port is None else f"{label} at port {port}"),
    )


class _Common(TypedDict):
    label: str
    mount_path: Template | None
    permissions: str
    limit: int
    shared: bool
    optional: bool
    every: bool
    absent: bool


def _common(fields: Mapping[str, Item], label: str) -> _Common:
    mount_path: Template | None = None
    if "mountPath" in fields:
        text = fields["mountPath"].text("/dev/{name}")
        mount_path = Template(f"{text}{{name}}" if text.endswith("/") else text)
        if not mount_path.text.startswith("/"):
            raise fields["mountPath"].refuse("must be an absolute path in the container", "/dev/{name}")
    permissions = fields["permissions"].text("rw") if "permissions" in fields else "rw"
    try:
        permissions = kdp.DeviceNode(host_path="/x", permissions=permissions).permissions
    except kdp.InvalidValueError as error:
        raise fields["permissions"].error(str(error)) from error
    return _Common(
        label=label,
        mount_path=mount_path,
        permissions=permissions,
        limit=fields["limit"].number(MAX_COUNT, "10") if "limit" in fields else 1,
        shared="shared" in fields and fields["shared"].flag(),
        optional="optional" in fields and fields["optional"].flag(),
        every="all" in fields and fields["all"].flag(),
        absent="absent" in fields and fields["absent"].flag(),
    )
