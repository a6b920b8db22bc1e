"""`given_to_plugins`: what the running plugins of this node were given, because logs and reasons may repeat secrets.

The kernel tells the variables and arguments of the process behind a plugin's socket. The files that these name are
looked for as that process sees them: a container has a root directory of its own. A configuration file may have changed
since it was read, so the last good text in the state directory counts, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs

from ...hardware.host import Host
from ...storage import reading
from ...storage.documents import parse_json
from .commands import process
from .plain import mapping_in, string_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...operations.status_document import StatusDocument
    from .node import Node

_MOST_BYTES: Final = 8 << 20
"""Of a file: the last good configuration is kept as JSON, which is larger than its text."""

_MOST_IN_ALL: Final = 16 << 20
_MOST_FILES: Final = 200
"""Bytes and number of all files: a directory of configurations is a ConfigMap, which has a MiB at most."""


@final
@attrs.define(kw_only=True)
class PluginInputs:
    """What plugins were given.

    Attributes:
        parameters_of: Returns the parameters that the text of a configuration file sets.
        environ: The values of their variables, by name.
        parameters: The values of their backends' parameters, by name.
        texts: What their files hold.
        not_read: What could not be read, with the reason.
    """

    parameters_of: Callable[[Path, str], Mapping[str, object]]
    environ: dict[str, list[object]] = attrs.field(factory=dict[str, list[object]], repr=False)
    parameters: dict[str, list[object]] = attrs.field(factory=dict[str, list[object]], repr=False)
    texts: list[bytes] = attrs.field(factory=list[bytes], repr=False)
    not_read: list[str] = attrs.field(factory=list[str])
    _files_left: int = attrs.field(default=_MOST_FILES, init=False)
    _bytes_left: int = attrs.field(default=_MOST_IN_ALL, init=False)

    def take_process(self, pid: int, state_dir: str) -> None:
        """Take what a process was given, and the last good configuration in its state directory."""
        pairs = (each.partition("=") for each in self._words(pid, "environ"))
        variables = {name: text for name, _, text in pairs}
        arguments = self._words(pid, "cmdline")
        _add(self.environ, variables)
        _add(self.parameters, {name: text for name, text in variables.items() if name.startswith("KDP_SET_")})
        for name, _, text in (each.partition("=") for each in _values("--set", arguments)):
            _add(self.parameters, {name: text})
        root, of = Path(f"/proc/{pid}/root"), f" of process {pid}"
        for path in filter(None, [*_values("--config", arguments), variables.get("KDP_CONFIG")]):
            for file, data in self._read(root, self._found(pid, path), of):
                self._configure(file, data)
        for path in filter(None, [*_values("--kubeconfig", arguments), variables.get("KDP_KUBECONFIG")]):
            self.texts += [data for _, data in self._read(root, self._found(pid, path), of)]
        if state_dir:
            self.take_kept(root, state_dir, of)

    def take_kept(self, root: Path, directory: str, of: str = "") -> None:
        """Take the last good configurations that a state directory below a root holds."""
        try:
            names = sorted(os.listdir(_inside(root, directory)))
        except FileNotFoundError:
            return
        except OSError as error:
            self.not_read.append(f"{directory}/config-*.json{of} ({error.strerror})")
            return
        kept = [f"{directory}/{name}" for name in names if name.startswith("config-") and name.endswith(".json")]
        for _, data in self._read(root, kept, of):
            try:
                document = mapping_in(parse_json(data))
            except ValueError:  # it was damaged
                document = mapping_in(None)
            text = string_in(document.get("text")).encode(errors="replace")
            self._configure(string_in(document.get("file")), text or data)

    def _configure(self, file: str, data: bytes) -> None:
        self.texts.append(data)
        _add(self.parameters, self.parameters_of(Path(file), data.decode("utf-8-sig", errors="replace")))

    def _words(self, pid: int, name: str) -> list[str]:
        try:
            return reading.read(f"/proc/{pid}/{name}", limit=_MOST_BYTES).decode(errors="replace").split("\0")
        except OSError as error:
            self.not_read.append(f"/proc/{pid}/{name} ({error.strerror})")
            return []

    def _found(self, pid: int, path: str) -> Iterator[str]:
        """Give the path that a process was given, or the paths in such a directory: `--config-label` chooses there."""
        try:
            whole = path if path.startswith("/") else f"{os.readlink(f'/proc/{pid}/cwd')}/{path}"
            place = _inside(Path(f"/proc/{pid}/root"), whole)
            names = sorted(os.listdir(place)) if os.path.isdir(place) else None
        except OSError as error:
            self.not_read.append(f"{path} of process {pid} ({error.strerror})")
            return
        yield from [whole] if names is None else (f"{whole}/{name}" for name in names if not name.startswith("."))

    def _read(self, root: Path, paths: Iterator[str] | Sequence[str], of: str) -> Iterator[tuple[str, bytes]]:
        for path in paths:
            self._files_left -= 1
            if self._files_left < 0 or self._bytes_left <= 0:
                self.not_read.append(f"{os.path.dirname(path)}{of} (too much)")
                return
            try:
                data = reading.read(_inside(root, path), limit=min(_MOST_BYTES, self._bytes_left))
            except OSError as error:
                self.not_read.append(f"{path}{of} ({error.strerror})")
            else:
                self._bytes_left -= len(data)
                yield path, data


def given_to_plugins(
    node: Node,
    statuses: Mapping[Path, StatusDocument | None],
    parameters_of: Callable[[Path, str], Mapping[str, object]],
) -> PluginInputs:
    """Return the variables, arguments, and files of the plugins.

    Args:
        node: The node.
        statuses: The status document of each plugin, by its socket. `None` if it did not answer.
        parameters_of: Returns the parameters that the text of a configuration file sets.
    """
    given = PluginInputs(parameters_of=parameters_of)
    if node.state_dir is not None:
        given.take_kept(Path("/"), str(node.state_dir))
    for socket, status in statuses.items():
        if pid := process(socket):
            directories = None if status is None else status.directories
            given.take_process(pid, (directories or {}).get("state") or "")
        else:
            given.not_read.append(f"variables, arguments, and files of the plugin at {socket} (no process is seen)")
    return given


def _add(held: dict[str, list[object]], given: Mapping[str, object]) -> None:
    for name, value in given.items():  # another plugin may have another value
        held.setdefault(name, []).append(value)


def _values(flag: str, arguments: Sequence[str]) -> list[str]:
    after = [each for before, each in itertools.pairwise(arguments) if before == flag]
    return after + [each.removeprefix(f"{flag}=") for each in arguments if each.startswith(f"{flag}=")]


def _inside(root: Path, path: str) -> str:
    """Return where this process finds a path of another root, links followed there."""
    host = Host(root)
    return host.inside(host.resolve(path))
