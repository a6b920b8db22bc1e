"""The state directory: missing, somebody else's, read-only, full, or in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdp.admin.doctor import directories

from .samples import device, node_in, resource, status, told, written


def test_a_state_directory_that_is_missing(tmp_path: Path) -> None:
    assert told(directories.state(node_in(tmp_path)))[0] == "ok"
    verdict, text = told(directories.state(node_in(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "x"})))
    assert (verdict, "does not exist | mount a directory of the node there" in text) == ("failed", True)
    assert told(directories.state(node_in(tmp_path, state_dir=None)))[0] == "warning"
    written(tmp_path / "state", "")
    assert "is no directory" in told(directories.state(node_in(tmp_path)))[1]


def test_a_state_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(directories, "may_write", lambda path: False)
    (tmp_path / "state").chmod(0o500)
    text = told(directories.state(node_in(tmp_path)))[1]
    assert f"may not write to {tmp_path}/state" in text
    assert f"its owner lacks the right: chmod u+rwx {tmp_path}/state" in text  # not chown: it is this user's
    monkeypatch.setattr(directories, "is_read_only", lambda path: True)
    verdict, text = told(directories.state(node_in(tmp_path)))
    assert (verdict, "read-only file system" in text) == ("failed", True)


def test_a_state_directory_counted_as_a_failure_although_the_plugin_serves_without(tmp_path: Path) -> None:
    written(tmp_path / "state", "")
    served = status(resource(device("w0")))
    assert told(directories.state(node_in(tmp_path, served)))[0] == "warning"
    assert told(directories.state(node_in(tmp_path, {**served, "ready": False})))[0] == "failed"


def test_a_state_directory_that_cannot_be_made_was_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "why_no_file", lambda path: "Read-only file system")
    verdict, text = told(directories.state(node_in(tmp_path)))
    assert (verdict, f"user {os.geteuid()} cannot make it: Read-only file system | " in text) == (
        "warning",
        True,
    )


@pytest.mark.parametrize(
    ("free", "verdict", "said"),
    [((0, 7), "failed", "no room left"), ((1 << 20, None), "warning", "only 1 MiB left | make room"),
],
)  # fmt: skip
def test_a_file_system_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: tuple[int, int | None], verdict: str, said: str
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(directories, "free_of", lambda path: free)
    found, text = told(directories.state(node_in(tmp_path)))
    assert (found, said in text) == (verdict, True)
