"""A recording is opened by whoever gets one: only `RecordingError` may come out of its reader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.fuzzing import as_bytes, damaged, fuzz, replaced

from kdp_testkit.recording.transcript import RecordingError, read

HEADER: dict[str, Any] = {"format": "kdp-recording", "version": 1, "kdp": "0.1", "profile": None, "redacted": ["env"]}
LINES: list[dict[str, Any]] = [
    {"t": 0.1, "what": "kubelet", "state": "listening"},
    {
        "t": 0.2,
        "what": "call",
        "call": 1,
        "from": "plugin",
        "method": "Register",
        "registration": 1,
        "resource": "a/b",
        "message": {"version": "v1beta1", "endpoint": "x", "options": {}},
    },
    {"t": 0.3, "what": "answer", "call": 1, "from": "kubelet", "message": {}},
    {
        "t": 0.4,
        "what": "call",
        "call": 2,
        "from": "kubelet",
        "method": "Allocate",
        "registration": 1,
        "resource": "a/b",
        "message": {"container_requests": [{"devices_ids": ["w0"]}]},
    },
    {"t": 0.5, "what": "end", "call": 2, "from": "plugin", "code": "UNKNOWN", "detail": "no"},
    {"t": 0.6, "what": "closed"},
]
DOCUMENT: list[Any] = [HEADER, *LINES]


def joined(document: Any) -> bytes:
    lines = document if isinstance(document, list) else [document]
    return b"".join(as_bytes(line) + b"\n" for line in lines)


def test_only_a_recording_error_comes_out(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"

    def attempt(data: bytes) -> None:
        file.write_bytes(data)
        read(file)

    attempt(joined(DOCUMENT))
    inputs = st.one_of(replaced([DOCUMENT]).map(joined), damaged([joined(DOCUMENT)]))
    assert fuzz("recording", attempt, (RecordingError,), inputs, examples=200)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"t":' + "9" * 5000 + ',"what":"closed"}',
        '{"t":1,"what":"call","from":"kubelet","call":[1]}',
    ],
)
def test_a_hostile_line_is_one_sentence(line: str, tmp_path: Path) -> None:
    (tmp_path / "r").write_text(json.dumps(HEADER) + "\n" + line + "\n")
    with pytest.raises(RecordingError, match="line 2: is not a line of a recording") as refused:
        read(tmp_path / "r")
    assert len(str(refused.value)) < 500


def test_a_fifo_and_a_huge_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(8 << 30)
    for name, why in (("fifo", "it is a FIFO"), ("huge", "it has more than")):
        with pytest.raises(RecordingError, match=why):
            read(tmp_path / name)
