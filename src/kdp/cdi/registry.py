"""What a container runtime makes of the CDI specs on the node: which devices there are, and why one is not.

Rules: the Container Device Interface specification 1.1.0, and ``cache.go`` of the reference library. Only ``.json`` and
``.yaml`` files directly in the two directories count. A device in ``/var/run/cdi`` replaces one in ``/etc/cdi``. If two
files of one directory have a device, it is in none. A file that is refused has no device.

Three things are refused that the library takes, since nobody writes them: a tag, the merge key ``<<``, and text behind
the first document.
"""

from __future__ import annotations

import posixpath
import re
import stat
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..errors import InvalidValueError
from ..storage.documents import parse_json
from .parse import check_spec
from .render import qualified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..hardware import Host

CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look, the later one first."""

_OCTAL: Final = re.compile(r"([-+]?)0o?([0-7]+)", re.ASCII)
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+|0b[01]+)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)


@attrs.frozen(kw_only=True)
class _File:
    """A file as it was read: its spec, or why runtimes refuse it."""

    path: str
    data: bytes
    spec: dict[str, Any] | None = None
    refusal: str = ""


class CdiRegistry:
    """The CDI devices of the node, as runtimes see them. A file is judged again only when it has changed.

    Args:
        host: The node's files.
        parse_yaml: `kdp.command.yaml_reading.parse_yaml`, which comes with the extra ``cli``.
        directories: Where the node's runtime looks for specs. A later one wins.
    """

    def __init__(
        self, host: Host, parse_yaml: Callable[..., Any], directories: Sequence[str] = CDI_DIRECTORIES
    ) -> None:
        self._host = host
        self._directories = tuple(directories)
        self._parse_yaml = parse_yaml
        self._files: dict[str, _File] = {}
        self._devices: dict[str, _File] = {}
        self._conflicts: dict[str, tuple[str, str]] = {}

    def read(self) -> None:
        """Read the directories. Blocks for their files."""
        files: dict[str, _File] = {}
        devices: dict[str, _File] = {}
        conflicts: dict[str, tuple[str, str]] = {}
        for directory in self._directories:
            here: dict[str, _File] = {}
            for path in self._listed(directory):
                file = files[path] = self._read(path)
                for name in _names(file):
                    if name in here:
                        conflicts[name] = (here[name].path, path)
                    here[name] = file
            devices |= here
        self._files, self._devices, self._conflicts = files, devices, conflicts

    def problem(self, name: str, remedy: str) -> str | None:
        """Return why a container that names a device would not start; None: its spec is in order.

        Looks at the device nodes of the spec, since the runtime does so. It knows nothing of the spec's mounts and
        hooks: a plugin does not see the whole file system of the node.

        Args:
            name: The device's qualified name.
            remedy: What writes the spec, for the end of the sentence: "run nvidia-ctk cdi generate".
        """
        if name in self._conflicts:
            first, second = self._conflicts[name]
            return f"{first} and {second} both describe {name}, so runtimes use neither; remove one of the files"
        file = self._devices.get(name)
        if file is None:
            refusal = self._refusal(name.partition("=")[0])
            return f"no CDI spec of the node describes {name}{refusal}; {remedy}"
        for node in self._nodes(name):
            if (fault := self._node_fault(node)) is not None:
                return f"{file.path}: {fault}, so no container with {name} starts; {remedy}"
        return None

    def device_nodes(self, name: str) -> list[str]:
        """Return the device nodes that a container with this device gets, as paths of the node."""
        return [_host_path(node) for node in self._nodes(name)]

    def _nodes(self, name: str) -> list[dict[str, Any]]:
        file = self._devices.get(name)
        if file is None or file.spec is None:
            return []
        found: list[dict[str, Any]] = [*file.spec["containerEdits"]["deviceNodes"]]
        for device in file.spec["devices"]:
            if device["name"] == name.partition("=")[2]:
                found += device["containerEdits"]["deviceNodes"]
        return found

    def _refusal(self, kind: str) -> str:
        """Return which file with this kind is refused, and why; the other files are not to blame."""
        refused = [each.refusal for each in self._files.values() if each.spec is None and kind.encode() in each.data]
        return f", and runtimes refuse {refused[0]}" if refused else ""

    def _listed(self, directory: str) -> list[str]:
        try:
            paths = [path for pattern in ("*", ".*") for path in self._host.glob(f"{directory}/{pattern}")]
        except PermissionError:
            return []
        return [path for path in paths if path.endswith((".json", ".yaml")) and not self._host.is_directory(path)]

    def _read(self, path: str) -> _File:
        try:
            data = self._host.read_bytes(path)
        except OSError as error:
            return _File(path=path, data=b"", refusal=f"{path}: cannot be read: {error.strerror}")
        before = self._files.get(path)
        if before is not None and before.data == data:
            return before
        try:
            return _File(path=path, data=data, spec=check_spec(self._document(data), where=path))
        except InvalidValueError as error:
            return _File(path=path, data=data, refusal=str(error))
        except ValueError as error:
            return _File(path=path, data=data, refusal=f"{path}: is not YAML: {error}")

    def _document(self, data: bytes) -> object:
        try:
            return parse_json(data)  # fifty times as fast, and PyYAML refuses tabs between its tokens
        except ValueError:
            return self._parse_yaml(data.decode(), number=_number, aliases=True)

    def _node_fault(self, node: Mapping[str, Any]) -> str | None:
        """Return why the runtime cannot make a device node; None: it can, or it is on a part that we do not see."""
        path, type_ = _host_path(node), node["type"]
        if type_ == "p" or (type_ and node["major"]):
            return None  # the runtime need not look
        if not self._host.is_directory("/dev" if path.startswith("/dev/") else posixpath.dirname(path)):
            return None
        found = self._host.look(path)
        if found is None:
            return f"the device node {path} is gone"
        letter = "c" if stat.S_ISCHR(found[0]) else "b" if stat.S_ISBLK(found[0]) else None
        if letter is None:
            return f"{path} is no device node"
        if self._host.read_link(path) is not None:
            return f"{path} is a link, which runtimes do not follow"
        if type_ not in ("", letter):
            return f"{path} is a device node of type {letter}, and the spec says {type_}"
        return None


def _host_path(node: Mapping[str, Any]) -> str:
    path: str = node["hostPath"] or node["path"]
    return path


def _names(file: _File) -> list[str]:
    spec = file.spec
    return [] if spec is None else [qualified(spec["kind"], device["name"]) for device in spec["devices"]]


def _number(text: str) -> object:
    """Return the number that the library's YAML reader makes of a text, which reads 0660 as octal; or the text."""
    digits = text.replace("_", "")
    if octal := _OCTAL.fullmatch(digits):
        return int(octal[1] + octal[2], 8)
    if _WHOLE.fullmatch(digits):
        return int(digits, 0)
    return float(digits) if _FLOAT.fullmatch(digits) else text
