from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import attrs
import pytest

from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.store import AllocationStore, is_abandoned, saved_beside
from kdp.errors import InvalidValueError
from kdp.storage import locks
from kdp.storage.journal import Journal, read
from kdp.supervision.given import Given
from kdp.supervision.hooks import check_state
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/widget"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
ONE = AllocationRecord(
    uid="u1",
    resource=RESOURCE,
    ids=("w0",),
    state={"a": [1, None]},
    given={"w0": Given(nodes=("/dev/w0",), identity="serial 1")},
    is_seen=True,
)
TWO = AllocationRecord(
    uid="u2",
    resource=RESOURCE,
    ids=("w1", "w2"),
    state={},
    suspects=frozenset({("default", "train-0")}),
    is_seen=False,
)


def contents(allocations: Sequence[AllocationRecord]) -> list[dict[str, object]]:
    assert all(each.resource == RESOURCE for each in allocations)
    return [each.as_json() for each in allocations]


async def save(store: AllocationStore, records: Sequence[AllocationRecord], *, patience: float = PATIENCE) -> bool:
    store.match(records)
    return await store.saved(patience=patience)


def replace(store: AllocationStore, *records: AllocationRecord) -> None:
    """Replace the file of a store, as its thread does after a failed append."""
    journal = store._journal  # pyright: ignore[reportPrivateUsage]
    assert journal is not None
    journal._is_whole = False  # pyright: ignore[reportPrivateUsage]
    journal.write({each.uid: each.as_json() for each in records})


def saved_in(directory: Path) -> list[str]:
    """Return the uids of the allocations in the only file of a directory."""
    [name] = files(directory)
    return [*read((directory / name).read_bytes(), field="allocations").records]


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def read_only(path: Path) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


async def test_what_a_tests_kubelet_gave_says_nothing_of_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both save in one state directory, and a killed test's allocations were taken for those of pods."""
    plugins, state = tmp_path / "plugins", tmp_path / "state"
    plugins.mkdir()
    killed = AllocationStore(state, RESOURCE, plugins)
    assert await save(killed, [ONE], patience=PATIENCE)
    await killed.close(PATIENCE)
    [name] = files(state)
    await eventually_free(state / name)
    assert await AllocationStore(state, RESOURCE, PLUGINS).adopt() == []
    assert files(state) == [name]  # its kubelet may go on
    plugins.rmdir()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_only)
        assert await AllocationStore(state, RESOURCE, PLUGINS).adopt() == []  # an error of the disk ended the process
    assert files(state) == [name]
    assert await AllocationStore(state, RESOURCE, PLUGINS).adopt() == []
    assert files(state) == []


async def test_the_values_that_a_class_keeps_were_taken_for_allocations_and_set_aside(tmp_path: Path) -> None:
    """Under a kubelet in its usual place both files begin with the resource: a latched fault was forgotten."""
    values = tmp_path / f"{RESOURCE.replace('/', '_')}.store.json"
    values.write_text('{"version": 1, "class": "Pumps", "values": {"latched": ["a"]}}')
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)

    assert await store.adopt() == []
    assert await save(store, [ONE], patience=PATIENCE)
    await store.close(PATIENCE)
    [mine] = [name for name in files(tmp_path) if name != values.name]
    await eventually_free(tmp_path / mine)
    assert values.exists()
    assert is_abandoned(tmp_path, RESOURCE)
    (tmp_path / mine).unlink()
    assert not is_abandoned(tmp_path, RESOURCE)


async def test_what_must_be_scrubbed_outlives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a new file was not on the disk yet: the old one came back, in which no container had started."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    for scrubs in (False, True):
        synced.clear()
        store = AllocationStore(tmp_path, RESOURCE, PLUGINS, scrubs=scrubs)
        assert await save(store, [ONE], patience=PATIENCE)
        await store.close(PATIENCE)
        assert (synced[-1] == str(tmp_path)) is scrubs


async def test_a_file_stays_locked_whose_name_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process took over what pods of the living one had."""
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS, scrubs=True)
    with monkeypatch.context() as patched:
        patched.setattr("kdp.storage.files.sync_names", read_only)
        assert not await save(store, [ONE], patience=PATIENCE)
    other = AllocationStore(tmp_path, RESOURCE, PLUGINS, scrubs=True)
    assert await other.adopt() == []
    assert other.has_neighbours
    assert await save(store, [], patience=PATIENCE)
    assert files(tmp_path) == []


async def test_what_a_process_leaves_is_taken_over_once(tmp_path: Path) -> None:
    first = AllocationStore(tmp_path / "state", RESOURCE, PLUGINS)
    assert await first.adopt() == []
    assert await save(first, [ONE], patience=PATIENCE)
    assert await save(first, [ONE, TWO], patience=PATIENCE)
    [name] = files(tmp_path / "state")
    assert name.startswith("example.com_widget.")
    second, third = (
        AllocationStore(tmp_path / "state", RESOURCE, PLUGINS),
        AllocationStore(tmp_path / "state", RESOURCE, PLUGINS),
    )
    assert await second.adopt() == []  # its process lives
    await first.close(PATIENCE)
    await eventually_free(tmp_path / "state" / name)
    assert contents(await second.adopt()) == contents([ONE, TWO])
    assert await third.adopt() == []  # another one was quicker
    assert name in files(tmp_path / "state")  # until it is safe elsewhere
    second.take()
    assert await save(second, [ONE, TWO], patience=PATIENCE)
    assert name not in files(tmp_path / "state")
    assert await save(second, [], patience=PATIENCE)
    assert files(tmp_path / "state") == []
    for each in (second, third):
        await each.close(PATIENCE)


async def test_a_process_that_saved_in_that_moment_was_taken_for_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update, a pod was started on what a pod of the old process had left, and nobody cleaned up after that."""
    old, new = (AllocationStore(tmp_path, RESOURCE, PLUGINS) for _ in range(2))
    assert await save(old, [ONE], patience=PATIENCE)
    lock, saved = locks.lock, list[AllocationStore]()

    def save_first(descriptor: int) -> bool:
        if not saved:
            saved.append(old)
            replace(old, ONE, TWO)
        return lock(descriptor)

    monkeypatch.setattr(locks, "lock", save_first)
    assert await new.adopt() == []
    assert new.has_neighbours
    assert contents(await new.neighbours()) == contents([ONE, TWO])
    for each in (old, new):
        await each.close(PATIENCE)


async def test_a_second_container_that_waited_for_a_process_saw_none_while_the_first_looked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started on what a pod of the other process had left: in the midst of a look there was no neighbour."""
    old, new = (AllocationStore(tmp_path, RESOURCE, PLUGINS) for _ in range(2))
    assert await save(old, [ONE], patience=PATIENCE)
    assert await new.adopt() == []
    await old.close(PATIENCE)
    await eventually_free(tmp_path / files(tmp_path)[0])
    adopt, seen = new._adopt, list[bool]()  # pyright: ignore[reportPrivateUsage]
    lock = locks.lock

    def observed() -> object:
        found = adopt()
        seen.append(new.has_neighbours)
        return found

    def locked(descriptor: int) -> bool:
        seen.append(new.has_neighbours)
        return lock(descriptor)

    monkeypatch.setattr(locks, "lock", locked)
    monkeypatch.setattr(new, "_adopt", observed)
    assert contents(await new.adopt()) == contents([ONE])
    assert (seen, new.has_neighbours) == ([True, True], False)
    await new.close(PATIENCE)


async def test_a_save_amid_an_adoption_lost_what_a_dead_process_gave(tmp_path: Path) -> None:
    """Its file was removed before anybody had taken it over: a process that was killed in that moment lost it."""
    dead, living = (AllocationStore(tmp_path, RESOURCE, PLUGINS) for _ in range(2))
    assert await save(dead, [ONE], patience=PATIENCE)
    await dead.close(PATIENCE)
    [name] = files(tmp_path)
    await eventually_free(tmp_path / name)
    assert contents(await living.adopt()) == contents([ONE])
    assert await save(living, [TWO], patience=PATIENCE)  # of an Allocate that came meanwhile
    assert name in files(tmp_path)
    living.take()
    assert await save(living, [ONE, TWO], patience=PATIENCE)
    assert name not in files(tmp_path)
    await living.close(PATIENCE)


async def test_an_allocation_was_told_as_saved_while_the_file_with_it_was_still_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another save was waiting behind it; a process that was killed then lost the allocation, and scrubbed nothing."""
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    disk, entered = threading.Event(), threading.Event()
    write = Journal.write

    def slow(journal: Journal, changes: Mapping[str, Mapping[str, object] | None]) -> None:
        entered.set()
        assert disk.wait(PATIENCE)
        write(journal, changes)

    monkeypatch.setattr(Journal, "write", slow)
    store.put(ONE)
    first = asyncio.ensure_future(store.saved(patience=PATIENCE))
    assert await asyncio.get_running_loop().run_in_executor(None, entered.wait, PATIENCE)
    store.put(TWO)
    second = asyncio.ensure_future(store.saved(patience=PATIENCE))
    done, _ = await asyncio.wait({first, second}, timeout=0.1)
    assert not done
    disk.set()
    assert await first
    assert await second
    assert saved_in(tmp_path) == [ONE.uid, TWO.uid]
    await store.close(PATIENCE)


async def eventually_free(path: Path) -> None:
    import fcntl

    import anyio

    with anyio.fail_after(PATIENCE), path.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await anyio.sleep(0.01)
            else:
                return


async def test_other_resources_are_left_alone(tmp_path: Path) -> None:
    other = AllocationStore(tmp_path, f"{RESOURCE}.shared", PLUGINS)
    assert await save(other, [ONE], patience=PATIENCE)
    [name] = files(tmp_path)
    await other.close(PATIENCE)
    await eventually_free(tmp_path / name)
    ours = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await ours.adopt() == []
    assert await save(ours, [TWO], patience=PATIENCE)
    assert len(files(tmp_path)) == 2
    await ours.close(PATIENCE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is broken (JSONDecodeError"),
        ('{"version": 1, "resource": "example.com/widget", "allocations": 7}', "it is broken (ValueError"),
        ('{"version": 1, "resource": "example.com/widget"}', "it is broken (it has no list 'allocations')"),
        ('{"version": 2, "holdings": []}', "it has version 2, but this kdp reads version 1 only"),
        ('{"version": 1, "resource": "example.com/other", "allocations": []}', "resource 'example.com/other'"),
    ],
)
async def test_a_file_that_cannot_be_used_is_set_aside_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    (tmp_path / "example.com_widget.dead.json").write_text(text)
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await store.adopt() == []
    [name] = files(tmp_path)
    assert name.startswith("example.com_widget.dead.json.set-aside-")
    assert (tmp_path / name).read_text() == text
    [record] = caplog.records
    assert why in record.getMessage()
    assert name in record.getMessage()
    assert await store.adopt() == []
    assert len(caplog.records) == 1
    await store.close(PATIENCE)


async def test_a_directory_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kdp")
    (tmp_path / "state").write_text("a file is in the way")
    store = AllocationStore(tmp_path / "state" / "below", RESOURCE, PLUGINS)
    await store.adopt()
    assert not await save(store, [ONE])
    assert not await save(store, [ONE, TWO])
    warnings = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(warnings) == 1
    assert "not released if this process is killed" in warnings[0]
    (tmp_path / "state").unlink()
    assert await save(store, [ONE], patience=PATIENCE)
    assert caplog.records[-1].getMessage() == f"{RESOURCE}: allocations are saved again"
    await store.close(PATIENCE)


async def test_a_disk_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(os, "fsync", lambda _: os.read(read_end, 1))
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert not await save(store, [ONE], patience=0.05)
    assert "has not taken the allocations within 0.05 s" in caplog.text
    os.close(write_end)  # and comes back
    assert await save(store, [ONE, TWO], patience=PATIENCE)
    [name] = files(tmp_path)
    assert [each["uid"] for each in json.loads((tmp_path / name).read_text())["allocations"]] == ["u1", "u2"]
    await store.close(PATIENCE)
    os.close(read_end)


async def test_a_thread_that_could_not_be_started_once_is_started_by_the_next_call(
    tmp_path: Path, without_threads: Callable[[], AbstractContextManager[list[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    """As at a container's limit of processes: it ended the process, or nothing was saved any more."""
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    with without_threads():
        assert await store.adopt() == []
        assert store.has_neighbours  # so that it is asked again
        assert not await save(store, [ONE])
    assert "is not read: can't start new thread" in caplog.text
    assert await store.adopt() == []
    assert not store.has_neighbours
    assert await save(store, [ONE], patience=PATIENCE)
    await store.close(PATIENCE)


@pytest.mark.parametrize("state", [{"a": object()}, {"a": float("nan")}, None])
def test_a_state_that_json_cannot_carry_is_refused(state: object) -> None:
    with pytest.raises(InvalidValueError, match="the allocation's state"):
        check_state(state)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"cards": [{"at": Path("/dev/a")}]}, r"state['cards'][0]['at'] is a PosixPath"),
        ({"slots": {1: "a"}}, r"state['slots'] has the key 1, which is no text"),
    ],
)
def test_a_state_that_cannot_be_saved_did_not_say_where(state: object, says: str) -> None:
    """And a number as a key was a text after a restart."""
    with pytest.raises(InvalidValueError, match=re.escape(says)):
        check_state(state)


async def test_what_was_saved_after_the_end_kept_the_file_from_the_next_one(tmp_path: Path) -> None:
    """In one process, as after a change of the configuration: it was taken for a living neighbour's for good."""
    ended = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    await save(ended, [])
    await ended.close(PATIENCE)
    assert await save(ended, [attrs.evolve(ONE, uid="1")])
    [name] = files(tmp_path)
    await eventually_free(tmp_path / name)
    next_one = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert [each.uid for each in await next_one.adopt()] == ["1"]
    assert await ended.adopt() == []


DAMAGED: list[dict[str, object]] = [
    {"given": 1.5},
    {"given": {"w0": {"nodes": [], "identity": "", "reach": ["/dev/w0"]}}},
    {"pod": []},
    {"consumes": [1]},
]


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
async def test_a_damaged_record_ended_the_process(damage: dict[str, object], tmp_path: Path) -> None:
    """It was raised out of the reading, from a file of the own resource and from one beside it."""
    for resource in (RESOURCE, "other.com/widget"):
        document = {
            "version": 1,
            "resource": resource,
            "plugin_dir": str(PLUGINS),
            "allocations": [{**ONE.as_json(), **damage}],
        }
        (tmp_path / f"{resource.replace('/', '_')}.0a.json").write_text(json.dumps(document))
    assert saved_beside(tmp_path, PLUGINS, frozenset()) == []
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await store.adopt() == []
    assert store.has_lost


async def test_a_save_that_failed_was_repeated_by_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full for one Allocate; then nobody saved again, and an orderly stop did not either."""
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await save(store, [ONE])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: read_only(tmp_path))
        assert not await save(store, [ONE, TWO])
        assert store.problem is not None
        assert store.behind == {"w1", "w2"}
    with anyio.fail_after(PATIENCE):
        while store.problem is not None:  # no call asks for it
            await store.changes.after(store.changes.version)
    assert saved_in(tmp_path) == [ONE.uid, TWO.uid]
    assert not store.behind
    await store.close(PATIENCE)


async def test_a_stop_saved_nothing(tmp_path: Path) -> None:
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    store.put(ONE)
    assert await store.close(PATIENCE) == frozenset()
    assert saved_in(tmp_path) == [ONE.uid]


async def test_a_stop_tells_what_the_disk_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await save(store, [ONE, TWO])
    monkeypatch.setattr(os, "pwrite", lambda *_: read_only(tmp_path))
    monkeypatch.setattr("kdp.storage.files.replace_locked", lambda *_: read_only(tmp_path))
    store.drop(ONE.uid)
    assert await store.close(0.2) == {"w0"}


async def test_a_state_directory_that_was_removed_stayed_empty(tmp_path: Path) -> None:
    """All allocations were forgotten, and nothing said so, if no Allocate came any more."""
    store = AllocationStore(tmp_path / "state", RESOURCE, PLUGINS)
    assert await save(store, [ONE])
    shutil.rmtree(tmp_path / "state")
    store.look()
    assert await store.saved(patience=PATIENCE)
    assert saved_in(tmp_path / "state") == [ONE.uid]
    shutil.rmtree(tmp_path / "state")
    await store.close(PATIENCE)
    assert saved_in(tmp_path / "state") == [ONE.uid]


async def test_a_take_over_that_was_cancelled_kept_the_file_for_ever(tmp_path: Path) -> None:
    """It stayed locked, and neither this process nor another read it again."""
    dead, living = (AllocationStore(tmp_path, RESOURCE, PLUGINS) for _ in range(2))
    assert await save(dead, [ONE])
    await dead.close(PATIENCE)
    gate = threading.Event()
    living._worker.submit(lambda: gate.wait(PATIENCE))  # pyright: ignore[reportPrivateUsage]
    adopting = asyncio.ensure_future(living.adopt())
    await asyncio.sleep(0)
    adopting.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await adopting
    assert contents(await living.adopt()) == contents([ONE])
    await living.close(PATIENCE)


async def test_a_dead_file_that_cannot_be_removed_released_its_allocations_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, living, last = (AllocationStore(tmp_path, RESOURCE, PLUGINS) for _ in range(3))
    assert await save(dead, [ONE, TWO])
    await dead.close(PATIENCE)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda path, **_: read_only(path))
        living.match(await living.adopt())
        living.take()
        assert not await living.saved(patience=PATIENCE)
        living.drop(ONE.uid)
        assert await living.close(0.5) == {"w0", "w1", "w2"}
        writer = living._writer  # pyright: ignore[reportPrivateUsage]
        assert writer is not None
        writer.cancel()
        await living._worker.submit(lambda: None)  # pyright: ignore[reportPrivateUsage]  # its last write is over
        living._worker.end()  # pyright: ignore[reportPrivateUsage]
        for descriptor, _ in living._dead.values():  # pyright: ignore[reportPrivateUsage]
            locks.close(descriptor)
        living._let_go()  # pyright: ignore[reportPrivateUsage]
    assert len(files(tmp_path)) == 2
    assert contents(await last.adopt()) == contents([TWO])
    await last.close(PATIENCE)


def file_of(directory: Path) -> bytes:
    [path] = directory.glob("*.json")
    return path.read_bytes()


async def test_an_allocation_that_ends_before_the_next_write_leaves_no_line(tmp_path: Path) -> None:
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    assert await save(store, [ONE])
    before = file_of(tmp_path)
    store.put(TWO)
    store.drop(TWO.uid)
    assert await store.saved()
    assert file_of(tmp_path) == before
    assert not store.behind
    await store.close(PATIENCE)


async def test_the_file_has_an_allocation_as_it_is_at_the_write(tmp_path: Path) -> None:
    record = attrs.evolve(ONE)
    store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
    store.put(record)
    record.state = {"later": True}
    assert await store.saved()
    [saved] = read(file_of(tmp_path), field="allocations").records.values()
    assert saved["state"] == {"later": True}
    await store.close(PATIENCE)
