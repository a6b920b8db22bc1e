from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from kdp.dra.claims import disk
from kdp.dra.claims.checkpoint import ClaimPart, Record, Store, Use
from kdp.dra.claims.disk import Locks
from kdp.errors import CheckpointError
from kdp.storage import files, reading
from kdp.supervision.given import Given
from kdp_testkit.patience import PATIENCE

from .claim_objects import claim


def record(number: int = 0, **changes: Any) -> Record:
    use = Use(
        request="a/b",
        pool="p",
        name="w0",
        device_id="W0",
        share_id="s",
        is_admin=True,
        consumed={"m": "1Gi"},
        cdi_ids=("v/c=d",),
        network={"interfaceName": "eth0"},
        given=Given(nodes=("/dev/w0",), identity="1"),
    )
    whole = Record(
        claim=claim(number),
        is_complete=True,
        boot_id="boot",
        parts=(ClaimPart(request="a/b", resource="r/x", uses=(use,), state={"n": [1, "ü"]}),),
        spec={"kind": "v/c"},
        config=({"source": "FromClass"},),
    )
    return attrs.evolve(whole, **changes)


def stateless(number: int = 0, **changes: Any) -> Record:
    """Return a record that needs no copy."""
    whole = record(number, **changes)
    return whole.with_part(0, attrs.evolve(whole.parts[0], state={}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "claims")
    assert store.read(claim().uid) is None
    assert store.all() == []
    store.remove(claim().uid)
    for each in (record(0), record(1, is_complete=False)):
        store.write(each)
    assert store.read(claim().uid) == record(0)
    assert store.all() == [record(0), record(1, is_complete=False)]
    store.remove(claim().uid)
    assert store.all() == [record(1, is_complete=False)]
    name = f"{claim(1).uid}.json"
    assert sorted(path.name for path in store.directory.iterdir()) == [f".{name}.copy", name]
    assert store.directory.stat().st_mode & 0o777 == 0o700


def test_a_claim_was_still_known_when_its_directory_had_been_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "claims")
    store.write(record())
    shutil.rmtree(store.directory)
    assert not store.remove(claim().uid)
    assert store.known == ()


def test_what_was_written_beside_a_look_at_all_was_not_known_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "claims")
    store.write(record(is_complete=False))
    read, writers = reading.read, list[threading.Thread]()

    def read_then_write(*arguments: Any, **options: Any) -> bytes:
        found = read(*arguments, **options)
        if not writers:
            writers.append(threading.Thread(target=store.write, args=(record(),)))
            writers[0].start()
            writers[0].join(0.2)  # it would be done by then, if it did not wait
        return found

    monkeypatch.setattr(reading, "read", read_then_write)
    store.all()
    writers[0].join(PATIENCE)
    assert store.known == (record(),)


def test_what_a_draft_became_is_known(tmp_path: Path) -> None:
    store = Store(tmp_path / "claims")
    store.write(record(is_complete=False))
    store.commit(store.draft(record()), record())
    assert store.known == (record(),)


def test_a_uid_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    store = Store(tmp_path / "claims")
    odd = attrs.evolve(claim(), uid="../../x/ü")
    store.write(record(claim=odd))
    assert store.read(odd.uid) == record(claim=odd)
    assert [path.name for path in tmp_path.iterdir()] == ["claims"]


def test_a_later_version_that_adds_fields_is_read_and_its_fields_are_kept(tmp_path: Path) -> None:
    body = json.loads(record().encode().partition(b"\n")[2])
    body["invented"] = {"later": True}
    body["claim"]["invented"] = body["parts"][0]["invented"] = body["devices"][0]["invented"] = 1
    found = Record.decode(_file(body, version=7, readable_by=1))
    assert found.more == {"invented": {"later": True}}
    again = json.loads(attrs.evolve(found, is_complete=False).encode().partition(b"\n")[2])
    assert again["invented"] == {"later": True}
    assert attrs.evolve(found, more={}) == record()


def test_a_started_claim_of_an_earlier_version_has_no_answers_yet() -> None:
    body = json.loads(record(is_complete=False).encode().partition(b"\n")[2])
    body["devices"] = []
    [use] = Record.decode(_file(body, version=1, readable_by=1)).uses
    assert (use.device_id, use.cdi_ids, use.network, use.given) == ("W0", (), {}, Given())


def _file(body: Any, *, version: int, readable_by: int) -> bytes:
    payload = json.dumps(body).encode()
    head = {
        "format": "kdp-dra-claim",
        "version": version,
        "readable_by": readable_by,
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n" + payload


def _changed(data: bytes, change: Callable[[Any], object]) -> bytes:
    body = json.loads(data.partition(b"\n")[2])
    change(body)
    return _file(body, version=1, readable_by=1)


def _nested(data: bytes) -> bytes:
    payload = b"[" * 100_000
    return data.replace(hashlib.sha256(data.partition(b"\n")[2]).hexdigest().encode(), b"?").partition(b"\n")[
        0
    ].replace(b"?", hashlib.sha256(payload).hexdigest().encode()) + (b"\n" + payload)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-7],
    "one letter": lambda data: data.replace(b"W0", b"W1"),
    "newer": lambda data: _file({}, version=9, readable_by=9),
    "nested": lambda data: _nested(data),
    "of another claim": lambda data: _changed(data, lambda body: body["claim"].update(uid="..")),
    "not what it should be": lambda data: _file({"claim": 1}, version=1, readable_by=1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_set_aside_and_said(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    for number in (0, 1):
        store.write(stateless(number))
    file = tmp_path / f"{claim().uid}.json"
    broken = BROKEN[name](file.read_bytes())
    file.write_bytes(broken)
    assert store.all() == [stateless(1)], "the others are as before"
    assert store.set_aside == [claim().uid]
    [aside] = [path for path in tmp_path.iterdir() if "set-aside" in path.name]
    assert aside.read_bytes() == broken
    assert aside.name in caplog.text
    assert store.read(claim().uid) is None
    store.write(record())
    assert store.read(claim().uid) == record()


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_record_lost_the_state_that_a_hook_had_left(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.write(record())
    file, copy = tmp_path / f"{claim().uid}.json", tmp_path / f".{claim().uid}.json.copy"
    file.write_bytes(BROKEN[name](file.read_bytes()))
    assert store.read(claim().uid) == record()
    assert f"{file}: read from its copy {copy.name}" in caplog.text
    assert store.set_aside == [claim().uid]
    assert Store(tmp_path).all() == [record()], "the next process reads the copy, too"
    copy.write_bytes(BROKEN[name](copy.read_bytes()))
    assert store.read(claim().uid) is None, "both are damaged"
    assert store.remove(claim().uid)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_outlived_the_state_of_its_record(tmp_path: Path) -> None:
    """A reboot empties the state; the damaged record of the new boot then came back with the old state."""
    store = Store(tmp_path)
    store.write(record())
    store.write(stateless(boot_id="next boot"))
    assert [path.name for path in tmp_path.iterdir()] == [f"{claim().uid}.json"]
    store.commit(store.draft(record()), record())
    assert len(list(tmp_path.iterdir())) == 2, "what replaces a record by a draft has a copy, too"


def test_a_full_disk_failed_a_write_although_the_record_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    replace = files.replace

    def full(file: Path, data: bytes, **options: Any) -> None:
        if file.name.endswith(".copy"):
            raise OSError(28, "No space left on device")
        replace(file, data, **options)

    monkeypatch.setattr(files, "replace", full)
    store.write(record())
    assert store.read(claim().uid) == record()


def test_a_record_goes_after_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two left a copy, which is a claim without a record."""
    store = Store(tmp_path)
    store.write(record())
    removed: list[str] = []
    monkeypatch.setattr(os, "listdir", lambda _: [f"{claim().uid}.json", f".{claim().uid}.json.copy"])
    monkeypatch.setattr(files, "remove", lambda path: removed.append(path.name))
    store.remove(claim().uid)
    assert removed == [f".{claim().uid}.json.copy", f"{claim().uid}.json"]


# -- claims that are over ----------------------------------------------------------------------------------------------


def test_a_claim_that_is_over_does_not_look_prepared() -> None:
    over = Record.decode(record(is_complete=False, over_since=1700000000.0).encode())
    assert over.is_over
    assert (over.held.is_prepared, over.held.is_over) == (False, True)


def test_an_earlier_version_can_release_a_claim_that_is_over() -> None:
    """826155c7 has no ``over_since``: it keeps the field, and sees a claim that is started and not released."""
    body = json.loads(record(is_complete=False, over_since=1700000000.0).encode().partition(b"\n")[2])
    fields_of_826155c7 = {
        *("claim", "is_complete", "boot_id", "parts", "devices", "spec", "config", "pod_claim", "class_name"),
    }
    assert body.keys() - fields_of_826155c7 == {"over_since"}
    assert not body["is_complete"]
    assert [part["is_released"] for part in body["parts"]] == [False]
    assert body["parts"][0]["state"] == {"n": [1, "ü"]}


def test_a_record_of_an_earlier_version_is_not_over() -> None:
    body = json.loads(record(is_complete=False).encode().partition(b"\n")[2])
    del body["over_since"]
    assert not Record.decode(_file(body, version=1, readable_by=1)).is_over


def test_a_claim_that_an_earlier_version_has_prepared_again_is_not_over() -> None:
    body = json.loads(record(is_complete=False, over_since=1700000000.0).encode().partition(b"\n")[2])
    body["is_complete"] = True  # it keeps the fields that it does not know
    found = Record.decode(_file(body, version=1, readable_by=1))
    assert (found.is_over, found.is_complete) == (False, True)


@pytest.mark.parametrize("kind", ["FIFO", "link"])
def test_what_is_no_file_is_set_aside_and_nobody_waits(tmp_path: Path, kind: str) -> None:
    file, store = tmp_path / f"{claim().uid}.json", Store(tmp_path)
    makers: dict[str, Callable[[], object]] = {
        "FIFO": lambda: os.mkfifo(file),
        "link": lambda: file.symlink_to("/dev/zero"),
    }
    makers[kind]()
    assert store.all() == []
    assert store.set_aside == [claim().uid]
    store.write(record())
    assert store.all() == [record()]


def test_a_disk_that_is_full_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.write(stateless())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"cannot be written: No space left on device; kdp must keep there"):
            store.write(stateless(is_complete=False))
    assert store.read(claim().uid) == stateless()
    assert [path.name for path in tmp_path.iterdir()] == [f"{claim().uid}.json"], "no draft is left"


# -- locks -------------------------------------------------------------------------------------------------------------

HOLDER = """
import sys, pathlib, anyio
from kdp.dra.claims.disk import Locks
async def main():
    async with Locks(pathlib.Path(sys.argv[1])).claim("a"):
        print("held", flush=True)
        await anyio.sleep(600)
anyio.run(main)
"""


@pytest.mark.thorough
async def test_a_claim_is_locked_against_other_processes_until_they_die(tmp_path: Path) -> None:
    file = tmp_path / "data/serialize.lock"
    async with await anyio.open_process([sys.executable, "-c", HOLDER, str(file)], stderr=None) as holder:
        assert holder.stdout is not None
        assert (await holder.stdout.receive()).startswith(b"held")
        locks = Locks(file)
        async with locks.claim("b"), locks.whole():
            pass  # other claims are free
        entered = anyio.Event()

        async def enter() -> None:
            async with locks.claim("a"):
                entered.set()

        task = asyncio.create_task(enter())
        with anyio.move_on_after(0.2):
            await entered.wait()
        assert not entered.is_set()
        holder.send_signal(signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            await task


async def test_a_lock_that_another_process_keeps_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOCK_PATIENCE", 0.1)
    one, other = Locks(tmp_path / "lock"), Locks(tmp_path / "lock")  # as two processes: two open files
    async with one.claim("a"):
        with pytest.raises(CheckpointError, match=r"another process of this driver has worked on claim a for 0\.1 s"):
            async with other.claim("a"):
                pass
    async with other.claim("a"):
        pass
