"""The limit of evictions outlives the process, whatever lies in its file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.cluster.test_eviction import facts

from kdp.cluster.api import ApiError
from kdp.cluster.eviction import (
    HOUR,
    Describe,
    Description,
    Evict,
    EvictionPlanner,
    EvictionPolicy,
    PodName,
)
from kdp.cluster.evictor import EvictionRecord, Evictor
from kdp.storage.kept_list import VERSION


def test_what_was_written_is_read_while_it_counts(tmp_path: Path) -> None:
    record = EvictionRecord(tmp_path / "new/evictions.json")
    assert record.read() == []
    now = time.time()
    record.write([now - HOUR - 1, now - 10, now - 5])
    assert record.read() == pytest.approx([now - 10, now - 5], abs=0.01)


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"version": 1, "evicted": [{}]}'],
)
def test_a_damaged_file_is_named_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    file = tmp_path / "evictions.json"
    file.write_bytes(content)
    assert EvictionRecord(file).read() == []
    assert str(file) in caplog.text


def test_a_disk_that_cannot_be_written_is_said_one_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    record = EvictionRecord(tmp_path / "file/evictions.json")
    record.write([1.0])
    record.write([2.0])
    assert len(caplog.records) == 1
    assert "a restart begins a new hour for --evict-limit" in caplog.text


def test_the_next_process_keeps_to_the_limit() -> None:
    planner = EvictionPlanner(EvictionPolicy(after=1.0, limit=1))
    planner.remember([100.0])
    planner.observe(facts(), 101.0)
    assert not any(isinstance(command, Describe) for command in planner.step(103.0))
    planner.observe(facts(), 100.0 + HOUR)
    assert any(isinstance(command, Describe) for command in planner.step(100.0 + HOUR))


@pytest.mark.parametrize(("status", "kept"), [(None, 1), (429, 0)])
async def test_it_is_kept_before_it_is_asked_and_taken_back_if_refused(
    tmp_path: Path, status: int | None, kept: int
) -> None:
    file = tmp_path / "evictions.json"
    seen: list[int] = []

    def stored() -> int:
        document = json.loads(file.read_text())
        assert document["version"] == VERSION
        return len(document["evicted"])

    class Server:
        async def evict(self, *_: Any, **__: Any) -> Any:
            seen.append(stored())
            if status is not None:
                raise ApiError("no", status=status)

    evictor = Evictor("node0", EvictionPolicy(after=1.0, limit=1), lambda _: None, EvictionRecord(file))
    pod = PodName("ns", "p0")
    planner = evictor._planner
    now = time.monotonic()
    planner.observe(facts(), now - 10)
    planner.step(now)
    planner.described(pod, Description(uid="u", is_node_ready=True), asked_at=now, now=now)
    planner.observe(facts(now + 1), now + 1)
    [command] = planner.step(now + 1)
    assert isinstance(command, Evict)
    await evictor._evict(cast("Any", Server()), pod, "u", "why")
    assert (seen, stored()) == ([1], kept)
    assert os.stat(file).st_mode & 0o777 == 0o600
