from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.waiting import until

from kdp.operations import feature_files
from kdp.operations.feature_files import EXPIRY, FeatureFile, FeatureFiles
from kdp.supervision.labelling import Labelling, NodeLabels
from kdp_testkit.patience import PATIENCE

LABELS = {"example.com/b": "2", "example.com/a": "1"}
NAME = "kdp-example.com_widget"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_750_000_000.0

    def __call__(self) -> float:
        return self.seconds


def labels_of(text: str, now: float) -> dict[str, str]:
    """Read a file as NFD's local source does (source/local/local.go)."""
    found: dict[str, str] = {}
    until = now
    for line in map(str.strip, text.splitlines()):
        if line.startswith("# +"):
            key, _, value = line.removeprefix("# +").partition("=")
            assert key == "expiry-time"
            until = datetime.fromisoformat(value).timestamp()
        elif line and not line.startswith("#") and until >= now:
            name, _, value = line.partition("=")
            found[name] = value
    return found


def test_the_file_is_what_nfd_reads_and_expires(tmp_path: Path) -> None:
    clock = Clock()
    file = FeatureFile(tmp_path / NAME, now=clock)
    file.keep(LABELS)
    text = (tmp_path / NAME).read_text()
    assert labels_of(text, clock.seconds) == LABELS
    assert labels_of(text, clock.seconds + EXPIRY) == LABELS
    assert labels_of(text, clock.seconds + EXPIRY + 1) == {}
    expiry = re.search(r"^# \+expiry-time=(\S+)$", text, re.MULTILINE)
    assert expiry is not None
    assert datetime.fromisoformat(expiry[1]).tzinfo == UTC
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == [NAME]


def test_it_is_renewed_before_it_expires_and_not_sooner(tmp_path: Path) -> None:
    clock = Clock()
    file = FeatureFile(tmp_path / NAME, now=clock)
    file.keep(LABELS)
    first = (tmp_path / NAME).stat().st_ino
    clock.seconds += EXPIRY / 2 - 1
    file.keep(LABELS)
    assert (tmp_path / NAME).stat().st_ino == first
    clock.seconds += 2
    file.keep(LABELS)
    assert (tmp_path / NAME).stat().st_ino != first
    assert labels_of((tmp_path / NAME).read_text(), clock.seconds + EXPIRY) == LABELS


def test_only_the_own_file_is_removed(tmp_path: Path) -> None:
    old, new = (FeatureFile(tmp_path / NAME, now=Clock()) for _ in range(2))
    old.keep(LABELS)
    new.keep(LABELS)
    old.remove()
    assert (tmp_path / NAME).exists()
    new.remove()
    assert not (tmp_path / NAME).exists()


def test_a_predecessor_leaves_its_successors_file_alone_until_nobody_renews_it(tmp_path: Path) -> None:
    clock = Clock()
    old, new = (FeatureFile(tmp_path / NAME, now=clock) for _ in range(2))
    old.keep(LABELS)
    new.keep(LABELS)
    held = (tmp_path / NAME).read_bytes()
    os.utime(tmp_path / NAME, (clock.seconds, clock.seconds))
    clock.seconds += EXPIRY / 2 + 1
    old.keep(LABELS)
    assert (tmp_path / NAME).read_bytes() == held
    clock.seconds += EXPIRY / 2
    old.keep(LABELS)
    assert (tmp_path / NAME).read_bytes() != held
    assert labels_of((tmp_path / NAME).read_text(), clock.seconds + EXPIRY) == LABELS


class Service:
    """What `FeatureFiles` needs of a service: one supervisor."""

    def __init__(self) -> None:
        self.labelling = Labelling("Widgets")
        self.label = "Widgets"
        self.supervisors = [self]


def _told(files: FeatureFiles) -> dict[str, Any]:
    [told] = cast("list[dict[str, Any]]", files.as_json()["files"])
    return told


async def test_the_files_follow_the_labels_and_vanish_with_the_service(tmp_path: Path) -> None:
    service = Service()
    files = FeatureFiles(tmp_path, ["example.com/widget"])
    path = tmp_path / NAME
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run, cast("Any", service))
        await anyio.lowlevel.checkpoint()
        assert not path.exists()
        service.labelling.set(NodeLabels(values=LABELS))
        await until(path.exists)
        service.labelling.set(NodeLabels(values={"example.com/c": "3"}, problem="labels() of Widgets: wrong"))
        await until(lambda: "example.com/c=3" in path.read_text())
        told = _told(files)
        assert told == {"file": NAME, "labels": {"example.com/c": "3"}, "reason": "labels() of Widgets: wrong"}
        tasks.cancel_scope.cancel()
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_comes_later_is_a_reason_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feature_files, "LOOK_PAUSE", 0.02)
    tries: list[object] = []
    keep = FeatureFile.keep

    def counted(self: FeatureFile, labels: Mapping[str, str]) -> None:
        tries.append(labels)
        keep(self, labels)

    monkeypatch.setattr(FeatureFile, "keep", counted)
    service = Service()
    directory = tmp_path / "features.d"
    files = FeatureFiles(directory, ["example.com/widget"])

    def reason() -> Any:
        return _told(files)["reason"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run, cast("Any", service))
        service.labelling.set(NodeLabels(values=LABELS))
        await until(reason)
        assert reason() == (
            f"{directory}: there is no such directory; install Node Feature Discovery, or mount its directory there"
        )
        await until(lambda: len(tries) > 3)
        directory.mkdir()
        await until(lambda: (directory / NAME).exists())
        await until(lambda: reason() is None)
        tasks.cancel_scope.cancel()
    assert len([r for r in caplog.records if "are not written" in r.getMessage()]) == 1


async def test_a_file_system_that_hangs_is_a_reason_and_does_not_hold_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_files, "PATIENCE", 0.05)
    hangs = threading.Event()
    monkeypatch.setattr(FeatureFile, "keep", lambda *_: hangs.wait(20))
    service = Service()
    files = FeatureFiles(tmp_path, ["example.com/widget"])

    def is_told() -> bool:
        return "does not answer" in (_told(files)["reason"] or "")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run, cast("Any", service))
        service.labelling.set(NodeLabels(values=LABELS))
        await until(is_told)
        began = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - began < PATIENCE
    hangs.set()
