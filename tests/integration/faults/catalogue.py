"""Every fault that has a test, and the table of them in the documentation.

The tests report what they saw; ``docs/reference/faults.md`` is written from that and from nothing else. A test run
compares each row with the page. ``make faults`` runs the same tests with ``FAULTS_PAGE_ROWS`` set to a directory, where
they leave their rows, and then calls this file to write the page.
"""

from __future__ import annotations

import enum
import json
import os
import re
import sys
from pathlib import Path

import attrs

from . import injected

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "faults.md"

ROWS = "FAULTS_PAGE_ROWS"
"""The environment variable that names the directory where rows are left."""


class Fault(enum.Enum):
    """All faults, in the order of the table."""

    # The backend
    DISCOVER_RAISES = "`discover` raises"
    DISCOVER_HANGS = "`discover` hangs"
    DISCOVER_DUPLICATES = "`discover` returns one id twice"
    DISCOVER_LONG_ID = "`discover` makes an id of more than 63 characters"
    DISCOVER_NO_DEVICE = "`discover` returns something that is no `Device`"
    DISCOVER_NO_LIST = "`discover` returns nothing to iterate over"
    DISCOVER_SHARED_ID = "two backends have one device id"
    DISCOVER_TOO_MANY = "more devices than one list can hold"
    NOT_READY = "a hook raises `NotReady`"
    OPEN_RAISES = "`open` raises"
    OPEN_HANGS = "`open` hangs"
    WATCH_RAISES = "`watch` raises"
    NODE_GONE = "a device node does not exist"
    NODE_NO_DEVICE = "something else lies where a device node should be"
    NODE_LINK = "a device node is a link"
    # Allocate and the other calls
    ALLOCATE_RAISES = "`allocate` raises"
    ALLOCATE_REFUSES = "`allocate` raises `AllocationError`"
    ALLOCATE_HANGS = "`allocate` hangs"
    ALLOCATE_RELATIVE_PATH = "`allocate` returns a relative path"
    ALLOCATE_PERMISSIONS = "`allocate` returns the permissions `rwx`"
    ALLOCATE_TYPE = "`allocate` returns another type"
    ALLOCATE_NO_NODE = "`allocate` returns a device node that is not there"
    ALLOCATE_NO_MOUNT = "`allocate` returns a mount whose source is not there"
    ENV_CONFLICT = "two devices of one container want one variable to differ"
    UNKNOWN_ID = "Allocate of an unknown id"
    UNHEALTHY_ID = "Allocate of an unhealthy device"
    NO_ID = "Allocate of no device at all"
    PREFER_RAISES = "`prefer` raises"
    PREFER_HANGS = "`prefer` is slow"
    PREFER_WRONG = "`prefer` returns an id that is not offered"
    PREPARE_RAISES = "`prepare_container` raises"
    PREPARE_HANGS = "`prepare_container` hangs"
    # kubelet.sock and its directory
    SOCKET_ABSENT = "there is no kubelet.sock"
    SOCKET_DEAD = "kubelet.sock is a dead file"
    SOCKET_NOT_LISTENING = "kubelet.sock is bound, but not listening"
    SOCKET_DIRECTORY = "kubelet.sock is a directory"
    SOCKET_DENIED = "kubelet.sock may not be connected to (EACCES)"
    DIRECTORY_ABSENT = "the plugin directory is replaced by another one"
    DIRECTORY_PINNED = "the plugin directory is removed under a mount"
    DIRECTORY_WIPED = "the plugin directory is wiped while the stream lives"
    DIRECTORY_WIPED_EARLY = "the plugin directory is wiped while it registers"
    DIRECTORY_READ_ONLY = "the plugin directory is read-only"
    DIRECTORY_FULL = "the plugin directory is full"
    PATH_TOO_LONG = "the plugin directory's path leaves no room for a socket's name"
    NO_INOTIFY = "inotify is refused"
    REGISTRY_DEAD = "the kubelet lives, and its registry is dead"
    # Register and the stream
    REGISTER_VERSION = "Register is refused: version"
    REGISTER_NAME = "Register is refused: name"
    REGISTER_DIAL = "Register is refused: dial"
    REGISTER_CONNECTED = "Register is refused: already connected"
    REGISTER_HANGS = "Register is not answered"
    NO_STREAM = "registered, but no stream comes"
    WATCHER_REFUSES = "the plugin watcher refuses"
    OVERLAP = "two processes overlap in a rolling update"
    # The process
    MISCONFIGURED = "a setting is wrong"
    NO_DESCRIPTOR = "no file descriptor is free"
    SIGTERM = "SIGTERM, in every state"
    SIGTERM_IN_CALL = "SIGTERM while `discover`, `allocate` and `open` hang"


SECTIONS = {
    Fault.DISCOVER_RAISES: "The backend",
    Fault.ALLOCATE_RAISES: "The kubelet's calls",
    Fault.SOCKET_ABSENT: "kubelet.sock and the plugin directory",
    Fault.REGISTER_VERSION: "Registration and the stream",
    Fault.MISCONFIGURED: "The process",
}

HEAD = """\
<!-- Written by `make faults` from what the tests in tests/integration/faults saw. Do not edit. -->

# Faults

Read this page if you found a sentence of kdp in a log or an event. At the end you know its fault, and what kdp does
about it.

Each row was seen by a test that provokes the fault: the sentence as it was logged or returned, the state at that moment
as `status()` and `/readyz` tell it, and what becomes of the process. Nothing is lost by any of them: when the fault is
gone, the plugin is registered with all its devices again.

`…` stands for what differs from run to run (paths, names of sockets, seconds).
"""


@attrs.frozen
class Row:
    """What a test saw.

    Attributes:
        sentence: As logged or returned.
        state: As told by the status.
        exit_code: None: the process runs on.
    """

    sentence: str
    state: str
    exit_code: int | None = None

    def cells(self, fault: Fault) -> str:
        """Return the row as Markdown."""
        end = "runs on" if self.exit_code is None else f"exit code {self.exit_code}"
        return " | ".join(["", fault.value, _escape(self.sentence), self.state, end, ""]).strip()


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def general(sentence: str, *paths: str) -> str:
    """Take out of a sentence what differs from run to run; ``paths`` are directories of the test."""
    for path in sorted(paths, key=len, reverse=True):
        sentence = sentence.replace(path, "…")
    sentence = re.sub(r"kdp-[\w.-]+-[0-9a-f]{8}-\d+\.sock", "….sock", sentence)
    return re.sub(r"\b\d+(\.\d+)? s\b", "… s", sentence)


INJECTED = """
## What the simulated kubelet can do wrong

Faults of the [kubelet contract](../explanation/kubelet.md#14), section 14, by their numbers. Each method's docstring
says more. kdp's own tests, in `tests/faults`, make the others, too: calls that no kubelet makes, odd HTTP/2, a full
disk, and a plugin's process without time or descriptors.

| fault | method | what happens | what a good plugin does |
| --- | --- | --- | --- |
"""


def render(rows: dict[Fault, str]) -> str:
    """Return the page."""
    lines = [HEAD]
    for fault in Fault:
        if fault in SECTIONS:
            lines.append(
                f"\n## {SECTIONS[fault]}\n\n| fault | sentence | state | process |\n| --- | --- | --- | --- |\n"
            )
        if fault in rows:
            lines.append(rows[fault] + "\n")
    return "".join([*lines, INJECTED, *injected.rows()])


def on_page() -> dict[Fault, str]:
    """Return the rows of the page as they stand there."""
    text = PAGE.read_text() if PAGE.exists() else ""
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    return {fault: lines[fault.value] for fault in Fault if fault.value in lines}


def leave(directory: str, fault: Fault, row: Row) -> None:
    """Leave a row for `write`."""
    path = Path(directory) / f"{fault.name}.json"
    path.write_text(json.dumps(attrs.asdict(row)))


def write(directory: Path) -> None:
    """Write the page from the rows that were left; a fault whose test was skipped here keeps its row."""
    rows = on_page()
    for path in directory.glob("*.json"):
        fault = Fault[path.stem]
        rows[fault] = Row(**json.loads(path.read_text())).cells(fault)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(rows))
    missing = [fault.name for fault in Fault if fault not in rows]
    sys.stdout.write(f"{os.path.relpath(PAGE)}: {len(rows)} rows\n")
    if missing:
        raise SystemExit(f"no test reported {', '.join(missing)}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
