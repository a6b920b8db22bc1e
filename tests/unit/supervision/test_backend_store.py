"""The values that a backend keeps on the node."""

from __future__ import annotations

import errno
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.errors import InvalidValueError
from kdp.storage import files, locks
from kdp.supervision.backend_store import BackendStore, give_store, save_store, settle_store
from kdp.supervision.supervisor import Supervisor


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        latched = self.store.get("latched", [])
        return [kdp.Device(id="w0", health=kdp.Health.unhealthy("ECC") if "w0" in latched else kdp.Health.healthy())]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "example.com_widget.store.json"


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace", refuse)


def test_a_value_outlives_the_process(path: Path) -> None:
    BackendStore(path, "Widgets")["latched"] = ["w0"]
    later = BackendStore(path, "Widgets")
    assert dict(later) == {"latched": ["w0"]}
    del later["latched"]
    assert not later
    assert json.loads(path.read_text()) == {"version": 1, "class": "Widgets", "values": {}}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_read_is_a_copy(path: Path) -> None:
    store = BackendStore(path, "Widgets")
    given = store["latched"] = ["w0"]
    given.append("w1")
    store["latched"].append("w2")
    assert store["latched"] == BackendStore(path, "Widgets")["latched"] == ["w0"]


@pytest.mark.parametrize("value", [{1: "x"}, object(), {"a": {1, 2}}, float("nan")])
def test_what_json_cannot_carry_is_refused_and_changes_nothing(path: Path, value: Any) -> None:
    store = BackendStore(path, "Widgets")
    store["x"] = 1
    with pytest.raises(InvalidValueError, match=r"^the store cannot be saved as JSON \(.*\); use dicts, lists"):
        store["x"] = value
    assert store["x"] == 1


def test_two_processes_write_side_by_side(path: Path) -> None:
    one, other = BackendStore(path, "Widgets"), BackendStore(path, "Widgets")

    def write(store: BackendStore, name: str) -> None:
        for number in range(40):
            store[f"{name}{number}"] = number

    threads = [threading.Thread(target=write, args=each) for each in ((one, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(one) == len(other) == 80
    del one["a0"]
    assert "a0" not in other


async def test_what_the_disk_refuses_counts_at_once_and_is_saved_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = BackendStore(path, "Widgets")
    store["old"], store["x"] = 1, 1
    with monkeypatch.context() as full:
        fill_disk(full)
        store["x"] = 2
        del store["old"]
        store["y"] = 3
        assert dict(store) == {"x": 2, "y": 3}
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"Widgets: what it keeps is not saved in {path}: No space left on device; trying again"]
    BackendStore(path, "Widgets")["z"] = 4  # of another process, meanwhile
    backend = Widgets()
    vars(backend)["store"] = store
    await Supervisor(backend, host=None).once()
    assert dict(BackendStore(path, "Widgets")) == {"x": 2, "y": 3, "z": 4}


async def test_the_stop_says_what_the_disk_lacks(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Widgets()
    give_store(backend, path)
    fill_disk(monkeypatch)
    backend.store["latched"] = ["w0"]
    await settle_store(backend, 10)
    assert caplog.records[-1].getMessage() == "Widgets: the process ends before the disk has latched of its store"
    assert caplog.records[-1].levelno == logging.ERROR
    monkeypatch.undo()
    await Supervisor(backend, host=None).shutdown(1.0)
    assert dict(BackendStore(path, "Widgets")) == {"latched": ["w0"]}


def test_a_reload_gets_the_same_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Widgets(), Widgets()
    give_store(before, path)
    with monkeypatch.context() as full:
        fill_disk(full)
        before.store["latched"] = ["w0"]
    give_store(after, path)
    save_store(after)
    assert dict(BackendStore(path, "Widgets")) == {"latched": ["w0"]}


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2, "values": {}}', '{"version": 1, "values": 5}'])
def test_a_damaged_file_is_set_aside(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text(text)
    store = BackendStore(path, "Widgets")
    assert dict(store) == {}
    assert "and set aside as" in caplog.text
    store["x"] = 1
    assert [each.read_text() for each in path.parent.glob("*.set-aside-*")] == [text]
    assert dict(BackendStore(path, "Widgets")) == {"x": 1}


def test_a_lock_that_nobody_lets_go_of_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdp.supervision.backend_store._WAIT", 0.0)
    store = BackendStore(path, "Widgets")
    store["x"] = 1
    descriptor = locks.open_file(path)
    locks.lock(descriptor)
    store["x"] = 2
    assert store["x"] == 2
    locks.close(descriptor)
    store.save()
    assert dict(BackendStore(path, "Widgets")) == {"x": 2}


def test_before_it_is_served_a_class_has_none() -> None:
    with pytest.raises(InvalidValueError, match=r"^store of Widgets is not known before open\(\)"):
        Widgets().store["x"] = 1


async def test_a_latched_fault_is_a_few_lines(path: Path) -> None:
    backend = Widgets()
    give_store(share(backend, Sharing(replicas=2)), path)
    backend.store["latched"] = ["w0"]
    again = Widgets()
    give_store(again, path)
    [device] = (await Supervisor(again, host=None).once())["example.com/widget"]
    assert not device.health.is_healthy


def test_a_class_may_have_a_store_of_its_own() -> None:
    class Own(Widgets):
        def __init__(self) -> None:
            self.store = {"latched": []}

    backend = Own()
    give_store(backend, None)
    assert backend.store == {"latched": []}
