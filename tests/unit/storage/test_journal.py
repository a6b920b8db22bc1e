"""The file of a process's records: any version reads it at any moment, and a failure costs nothing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kdp.storage.journal import Journal, NoRecordsError, read

HEAD = {"version": 1, "resource": "example.com/widget"}
GONE: Mapping[str, Any] = {"ids": []}


def journal(folder: Path) -> Journal:
    return Journal(folder / "state" / "a.json", HEAD, field="records", gone=GONE)


def record(uid: str, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "ids": [uid], **more}


def saved(made: Journal) -> dict[str, Any]:
    """Return the records as a version does that knows no journal: one JSON document, the last value of a key."""
    document = json.loads(made.path.read_text())
    assert {name: document[name] for name in HEAD} == HEAD
    contents = read(made.path.read_bytes(), field="records")
    found = {each["uid"]: each for each in document["records"]}
    assert {uid: each for uid, each in found.items() if each["ids"]} == contents.records
    return dict(contents.records)


def test_each_append_leaves_one_document(tmp_path: Path) -> None:
    made = journal(tmp_path)
    assert made.is_in_place
    made.write({"a": record("a")})
    inode = made.path.stat().st_ino
    made.write({"b": record("b", text="one\nline")})
    made.write({"a": record("a", state={"n": 1})})
    made.sync()
    assert saved(made) == {"b": record("b", text="one\nline"), "a": record("a", state={"n": 1})}
    made.write({"b": None})
    assert saved(made) == {"a": record("a", state={"n": 1})}
    assert made.path.stat().st_ino == inode
    assert made.is_in_place
    made.write({"a": None})
    assert not made.path.exists()
    assert made.is_in_place
    made.write({"c": record("c")})
    assert saved(made) == {"c": record("c")}
    made.close()


@pytest.mark.parametrize("fault", ["EIO", "nothing written", "a part written"])
def test_a_failed_append_leaves_the_document_and_is_repeated(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = journal(tmp_path)
    made.write({"a": record("a")})
    before = made.path.read_bytes()
    write, failures = os.pwrite, 1

    def failing(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal failures
        if not failures:
            return write(descriptor, data, offset)
        failures -= 1
        if fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data[: 0 if fault == "nothing written" else 7], offset)

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(OSError, match=r"Input/output error|No space left"):
        made.write({"b": record("b")})
    assert made.path.read_bytes() == before
    made.write({"b": record("b")})
    assert saved(made) == {"a": record("a"), "b": record("b")}
    made.close()


def test_a_synced_file_has_no_outdated_line_of_a_record_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1 beside this process read each line as an allocation, and released nothing of the same device."""
    made = journal(tmp_path)
    for uid in ("a", "b", "c"):
        made.write({uid: record(uid)})
    made.write({"b": None})
    with monkeypatch.context() as full:
        full.setattr("kdp.storage.files.replace_locked", _no_space)
        made.sync()
    assert saved(made) == {"a": record("a"), "c": record("c")}
    made.sync()
    assert [each["uid"] for each in json.loads(made.path.read_text())["records"]] == ["a", "c"]
    inode = made.path.stat().st_ino
    made.write({"a": record("a", state={})})
    made.sync()
    assert made.path.stat().st_ino == inode
    made.close()


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.write({"a": record("a")})
    made.path.unlink()
    made.path.parent.rmdir()
    assert not made.is_in_place
    made.write({})
    assert saved(made) == {"a": record("a")}
    made.close()


def test_outdated_lines_do_not_pile_up(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.write({"a": record("a")})
    sizes = set[int]()
    for number in range(3000):
        made.write({"b": record("b", number=number), f"c{number}": record(f"c{number}")})
        made.write({f"c{number}": None})
        sizes.add(made.path.stat().st_size)
    assert max(sizes) < 70 << 10
    assert saved(made) == {"a": record("a"), "b": record("b", number=2999)}
    made.close()


def test_a_record_stays_gone_while_another_file_has_it(tmp_path: Path) -> None:
    """The file of the process before cannot be removed: its allocations were released again after a restart."""
    made = journal(tmp_path)
    made.kept = {"old"}
    made.write({"old": record("old")})
    made.write({"old": None})
    assert set(read(made.path.read_bytes(), field="records").gone) == {"old"}
    made._is_whole = False  # pyright: ignore[reportPrivateUsage]
    made.write({"a": record("a")})  # written whole
    assert set(read(made.path.read_bytes(), field="records").gone) == {"old"}
    made.kept = set()
    made.write({"a": None})
    assert not made.path.exists()
    made.close()


def test_a_file_that_was_cut_off_costs_the_last_record(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.write({"a": record("a")})
    made.write({"b": record("b")})
    text = made.path.read_bytes()
    start = text.index(b"\n") + 1
    for length in range(start, len(text)):
        contents = read(text[:length], field="records")
        assert contents.head == HEAD
        assert set(contents.records) <= {"a", "b"}
        assert len(contents.records) + len(contents.damaged) <= 2
    assert set(read(text[:-4], field="records").records) == {"a"}
    made.close()


@pytest.mark.parametrize("damaged", [7, None, "text", [], {}, {"uid": 7}, {"ids": []}])
def test_a_damaged_record_costs_that_record(damaged: object) -> None:
    text = json.dumps({**HEAD, "records": [record("a"), damaged, record("b")]}).encode()
    contents = read(text, field="records")
    assert set(contents.records) == {"a", "b"}
    assert contents.damaged == (json.dumps(damaged),)


@pytest.mark.parametrize("text", [b"", b"7", b"[]", b'{"version": 1', b'{"records": 7}', b"\xff\n]}"])
def test_a_damaged_start_is_no_journal(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text, field="records")


def test_a_document_of_a_later_version_tells_its_version() -> None:
    with pytest.raises(NoRecordsError) as raised:
        read(b'{"version": 2, "holdings": []}', field="records")
    assert raised.value.head["version"] == 2
