"""`Bundle`: the facts of a node for an issue, as one archive without secrets.

It is a snapshot of the node's hardware (`kdp.hardware.snapshot`) with documents below `PLACE`. So one redaction covers
both: a serial number that sysfs names is replaced in a log, too. `kdp devices --snapshot` works on a bundle.

A bundle leaves out all that may be a secret: values of the backend's own parameters, states of allocations, and edits
of containers. `kdp.admin.doctor.given` replaces the secrets among a plugin's settings, and the table of
`kdp.hardware.snapshot.tokens` lists the patterns of secrets in all texts. Names of nodes, pods, and files stay.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ..._version import __version__
from ...errors import ConfigurationError, printable
from ...hardware.capture import capture, generic_paths
from ...hardware.snapshot import archive, tokens
from ...hardware.snapshot.archive import FileEntry, Snapshot
from ...hardware.snapshot.redact import KINDS, redact
from ...operations.status_document import StatusDocument
from ...storage import trees
from ...storage.documents import parse_json
from .answers import Answer, Finding, Question, Verdict, beside
from .commands import node_name, pod_uid
from .given import given_to_plugins
from .node import MOST_PLUGINS, text_of
from .plain import mapping_in, string_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from .node import Node

PLACE: Final = "/kdp-bundle"
CONTENTS: Final = f"{PLACE}/CONTENTS"
VERSION: Final = 2

PATIENCE: Final = 20.0
"""Seconds for the hardware: a driver may take its time with each attribute."""

MOST_OF_LOG: Final = 256 << 10
"""Bytes of one log that are taken, from its end."""

_MOST_LOGS: Final = 8
_MOST_FILES: Final = 64
_MOST_TOLD: Final = 24 << 20
"""Bytes of the status documents; that of 20,000 devices has some 5 MiB."""

_LONGEST: Final = 1000
_MOST_OF_CHECKPOINT: Final = 8 << 20
_LEADING_ZEROS: Final = re.compile(r"(?<=[\[:,\s])(-?)0+(?=\d)")


@final
@attrs.frozen(kw_only=True)
class BundledStatus:
    """The answer of one plugin.

    Attributes:
        socket: Its socket on that node.
        status: Its status. `None` if it did not answer.
        problem: Why it did not answer. Empty if it did.
    """

    socket: str
    status: StatusDocument | None
    problem: str = ""


@final
@attrs.frozen(kw_only=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        about: Its date, its node, and the versions of kdp and its libraries.
        made: Its date, in UTC.
        findings: The doctor's answers on that node.
        statuses: The answers of the plugins.
    """

    about: Mapping[str, str]
    made: datetime
    findings: tuple[Finding, ...]
    statuses: tuple[BundledStatus, ...]


@final
@attrs.frozen(kw_only=True)
class BundleSettings:
    """What the command itself was given. A running plugin tells its own settings.

    Attributes:
        settings: The values of kdp's own settings, by variable or key.
        parameters: The backend's own parameters. Only their names are told.
        hidden: Files that hold secrets, such as the configuration and the kubeconfig. Nothing of them is told.
        parameters_of: Returns the parameters that the text of a plugin's configuration file sets.
    """

    settings: Mapping[str, str] = attrs.field(factory=dict[str, str])
    parameters: Mapping[str, object] = attrs.field(factory=dict[str, object])
    hidden: Sequence[bytes] = attrs.field(default=(), repr=False)
    parameters_of: Callable[[Path, str], Mapping[str, object]] = lambda _path, _text: {}


def make(node: Node, findings: Sequence[Finding], settings: BundleSettings) -> Snapshot:
    """Collect what an issue needs, without secrets. It blocks for files, sockets, and drivers."""
    nothing = Snapshot(kernel=f"{platform.system()} {platform.release()} {platform.machine()}")
    taken = beside({"hardware": lambda: capture(node.host, generic_paths(node.host))}, PATIENCE)
    snapshot = taken.get("hardware", nothing)
    statuses = [*_statuses(node)]
    told = {socket: _document_of(value) for socket, value in statuses}
    given = given_to_plugins(node, told, settings.parameters_of)
    documents: dict[str, object] = {
        "about.json": _about(node),
        "answers.json": [_answer(each) for each in findings],
        "checkpoint.json": _checkpoint(node),
        "settings.json": {
            "plugins": {str(socket): _settings_of(document) for socket, document in told.items()},
            "doctor": {
                "settings": settings.settings,
                "parameters": dict.fromkeys(settings.parameters, "left out"),
            },
        },
        "state.json": _state(node),
    }
    for number, (socket, value) in enumerate(statuses):
        documents[f"status-{number}.json"] = {"socket": str(socket), "status": value}
    for name, document in documents.items():
        snapshot.files[f"{PLACE}/{name}"] = FileEntry(f"{json.dumps(document, indent=1)}\n".encode(), 0o644)
    for name, data in (*_logs(node), *_own_logs(node)):
        snapshot.files[f"{PLACE}/logs/{name}"] = FileEntry(data, 0o644)
    notes = (f"not read, so a secret of it may be left in a log or reason: {each}\n" for each in given.not_read)
    snapshot.files[CONTENTS] = FileEntry("".join(dict.fromkeys(notes)).encode(errors="replace"), 0o644)
    paths = (*snapshot.files, *snapshot.links, *snapshot.links.values(), *snapshot.nodes)
    public = {
        *_public(filter(None, told.values())),
        *(part for path in paths for part in os.fsencode(path).split(b"/")),
    }
    # A reason or a log may repeat what this command or a plugin was given.
    known = [*tokens.unreadable(settings.parameters, public), *tokens.unreadable(given.parameters, public)]
    environs = [{name: each[name] for name in each.keys() - _DIRECTORIES} for each in (node.environ, given.environ)]
    values = (*environs, settings.parameters, given.parameters)
    hidden = [*settings.hidden, *given.texts, *(json.dumps(each, default=str).encode() for each in values)]
    redact(snapshot, KINDS, known=known, hidden=hidden, public=public)
    for path, file in snapshot.files.items():
        if path.startswith(PLACE) and path.endswith(".json"):
            snapshot.files[path] = attrs.evolve(file, data=_valid(file.data))
    first = f"{_BEFORE}\n".encode()
    silent = {f"status-{n}.json" for n, (_, value) in enumerate(statuses) if list(mapping_in(value)) == ["problem"]}
    contents = [f"{line}\n".encode() for line in _contents(snapshot, silent)]
    snapshot.files[CONTENTS] = FileEntry(b"".join([first, *contents, snapshot.files[CONTENTS].data]), 0o644)
    return snapshot


def listed(snapshot: Snapshot) -> list[str]:
    """Return what a bundle holds, one line for each document and one for the hardware; then what was not read."""
    return snapshot.files[CONTENTS].data.decode().splitlines()


def _contents(snapshot: Snapshot, silent: Collection[str]) -> list[str]:
    lines: list[str] = []
    for path, file in sorted(snapshot.files.items()):
        name = path.removeprefix(f"{PLACE}/")
        if name != path and path != CONTENTS:
            what = next(text for start, text in _WHAT.items() if name.startswith(start))
            what = "only the reason why a plugin did not answer with its status" if name in silent else what
            lines.append(f"{path[1:]}: {what}, {max(1, len(file.data) >> 10)} KiB")
    hardware = [path for path in snapshot.files if not path.startswith(f"{PLACE}/")]
    counts = f"{len(hardware)} attributes, {len(snapshot.links)} links, {len(snapshot.nodes)} device nodes"
    return [*lines, f"sys, proc, dev: the node's hardware, as kdp snapshot takes it, {counts}"]


_BEFORE: Final = (
    "Before you send this, look through logs/, status-*.json, and answers.json: names of nodes, pods, and files stay, "
    "and so does a secret that reads like an ordinary word."
)

_WHAT: Final = {
    "about": "versions of kdp, its libraries, Python, and the system",
    "answers": "the answers of kdp doctor",
    "checkpoint": "which pod holds which device, as the kubelet has saved it, without what the container got",
    "logs/plugin-": "the last lines of a plugin's log, as it has them in memory",
    "logs/": "the end of a log of the plugin's pod",
    "settings": "what the plugins' settings are, what this command was given, and the names of parameters",
    "state": "names and sizes of the files in the state directory and in the plugin directory",
    "status": "what a plugin says of itself: resources, devices, health, pods, and recent events",
}


def read(file: Path) -> Bundle:
    """Read a bundle from anybody.

    Raises:
        ConfigurationError: It cannot be read, or is no bundle.
    """
    snapshot = archive.read(file, kind="bundle", command="kdp doctor --bundle")
    try:
        about = _document(snapshot, "about.json")
        answers = _document(snapshot, "answers.json")
        texts = {str(key): printable(str(value), _LONGEST) for key, value in about.items()}
        return Bundle(
            about=texts,
            made=datetime.fromisoformat(texts["made"]).astimezone(UTC),
            findings=tuple(_finding(each) for each in answers),
            statuses=tuple(_bundled_statuses(snapshot)),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigurationError(
            f"bundle {file}: has no answers of kdp doctor; expected a file as kdp doctor --bundle writes it"
        ) from None


def _bundled_statuses(snapshot: Snapshot) -> Iterator[BundledStatus]:
    number = 0
    while f"{PLACE}/status-{number}.json" in snapshot.files:
        answer = _document(snapshot, f"status-{number}.json")
        value, status = answer["status"], _document_of(answer["status"])
        problem = "" if status is not None else string_in(mapping_in(value).get("problem")) or "it is no status of kdp"
        yield BundledStatus(socket=printable(str(answer["socket"]), _LONGEST), status=status, problem=problem)
        number += 1


def _document(snapshot: Snapshot, name: str) -> Any:
    return parse_json(snapshot.files[f"{PLACE}/{name}"].data)


# -- what is collected -------------------------------------------------------------------------------------------------


def _about(node: Node) -> dict[str, str]:
    libraries = ("anyio", "asyncinotify", "attrs", "grpcio", "lightkube", "prometheus-client", "protobuf")
    found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in distributions()}
    return {
        "bundle": str(VERSION),
        "kdp": __version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "node": node_name(node) or platform.node(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: version for name, version in sorted(found.items()) if name in libraries or name.startswith("kdp")},
    }


def _answer(finding: Finding) -> dict[str, str]:
    question, answer = finding.question, finding.answer
    texts = {"id": question.id, "title": question.title, "why": question.why}
    return {**texts, "answer": answer.verdict.value, "seen": answer.seen, "remedy": answer.remedy}


def _finding(found: Mapping[str, Any]) -> Finding:
    texts = {name: printable(str(found[name]), _LONGEST) for name in ("id", "title", "why", "seen", "remedy")}
    words = {name: texts[name] for name in ("id", "title", "why")}
    question: Question[Any] = Question(**words, ask=lambda _: None)  # it is answered
    return Finding(question, Answer(Verdict(found["answer"]), texts["seen"], texts["remedy"]))


def _statuses(node: Node) -> Iterator[tuple[Path, object]]:
    sockets = node.sockets[:MOST_PLUGINS]
    answers = beside({path: functools.partial(node.ask, path) for path in sockets}, PATIENCE)
    left = _MOST_TOLD
    for path in sockets:
        code, text = answers.get(path, (1, f"no answer within {PATIENCE:g} s"))
        left -= len(text)
        if left < 0:
            code, text = 1, f"left out: the plugins of this node tell more than {_MOST_TOLD >> 20} MiB"
        try:
            yield path, parse_json(text) if code == 0 else {"problem": text.strip()}
        except ValueError:
            yield path, {"problem": "its answer is not JSON"}


def _checkpoint(node: Node) -> object:
    """Return which pod holds which device. What a container was given may be a secret, and is not taken."""
    text = text_of(node.paths.device_plugin_dir / "kubelet_internal_checkpoint", limit=_MOST_OF_CHECKPOINT)
    try:
        data: dict[str, Any] = parse_json(text)["Data"]
        entries: list[dict[str, Any]] = data.get("PodDeviceEntries") or []
        names = ("PodUID", "ContainerName", "ResourceName", "DeviceIDs")
        pods = [{name: entry.get(name) for name in names} for entry in entries]
        return {"pods": pods, "registered": data.get("RegisteredDevices")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"problem": "it cannot be read, or it is empty"}


def _state(node: Node) -> dict[str, object]:
    found: dict[str, object] = {}
    for directory in (node.state_dir, node.paths.device_plugin_dir):
        if directory is not None:
            try:
                names = sorted(os.listdir(directory))[:500]
                found[str(directory)] = {name: os.lstat(directory / name).st_size for name in names}
            except OSError as error:
                found[str(directory)] = str(error.strerror)
    return found


def _logs(node: Node) -> Iterator[tuple[str, bytes]]:
    """Return the ends of the logs that the kubelet keeps of the plugins' pods. Only root may read them.

    A pod that has the node's logs mounted can put a link there, to any file of the node. So none is followed.
    """
    base = node.host.path("/var/log/pods")
    uids = dict.fromkeys(filter(None, (pod_uid(node, path) for path in node.sockets[:MOST_PLUGINS])))
    pods = [name for name, _ in trees.entries(base) if name.rpartition("_")[2] in uids]
    found = [
        (pod, container, name)
        for pod in pods
        for container, _ in trees.entries(base, (pod,))
        for name, mode in trees.entries(base, (pod, container))
        if name.endswith(".log") and stat.S_ISREG(mode)
    ]
    taken = 0
    for parts in found[:_MOST_FILES]:
        data = _end_of(base, parts)
        if data and taken < _MOST_LOGS:
            taken += 1
            yield f"{taken}-{re.sub(r'[^A-Za-z0-9.-]', '_', parts[1])}-{parts[2]}", data


def _own_logs(node: Node) -> Iterator[tuple[str, bytes]]:
    """Return the last lines that the plugins themselves have: in a container nobody sees the kubelet's files."""
    if node.ask_log is None:
        return
    for number, plugin in enumerate(node.answering()[:_MOST_LOGS]):
        code, text = node.ask_log(plugin.socket)
        if code == 0 and text.strip():  # versions before have no such page
            yield f"plugin-{number}.log", text.encode()[-MOST_OF_LOG:]


def _end_of(base: Path, parts: Sequence[str]) -> bytes:
    try:
        with open(trees.open_file(base, parts), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_OF_LOG))
            return file.read(MOST_OF_LOG)
    except OSError:
        return b""


_DIRECTORIES: Final = frozenset({"PWD", "OLDPWD"})
"""Variables in which a shell has its working directory: the answers are about paths in it."""


def _document_of(value: object) -> StatusDocument | None:
    """Return the status document of an answer. `None` if a plugin did not answer, or another program did."""
    try:
        return StatusDocument.from_json(value)
    except ValueError:
        return None


def _settings_of(document: StatusDocument | None) -> object:
    return "not told" if document is None or document.settings is None else document.settings


def _public(documents: Iterable[StatusDocument]) -> Iterator[bytes]:
    """Give the names that the kubelet is told in any case: of resources and devices."""
    for document in documents:
        for resource in document.resources:
            names = [resource.name, *(device.id for device in resource.listed)]
            yield from (name.encode(errors="replace") for name in names)


def _valid(data: bytes) -> bytes:
    """Return a JSON document that is one after the redaction, too: a number may have become one with leading zeros."""
    text = data.decode(errors="replace")
    try:
        json.loads(text)
    except ValueError:
        text = _LEADING_ZEROS.sub(r"\1", text)
    return text.encode()
