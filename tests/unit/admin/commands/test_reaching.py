from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import click
import pytest
from tests.mounted import show_plugin
from typing_extensions import override

import kdp
from kdp.admin.commands.reaching import agree, is_here, server_of
from kdp.command import asking


class Terminal(io.StringIO):
    """A terminal at which this is typed."""

    @override
    def isatty(self) -> bool:
        return True


def test_nobody_is_asked_who_agreed_before_or_has_nothing_to_agree_to() -> None:
    agree(None, yes=False)
    agree("node node-0 has 0 of it; remove it", yes=True)


def test_a_script_is_told_how_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(kdp.ConfigurationError, match=r"remove it\? Give --yes to agree"):
        agree("node node-0 has 0 of it; remove it", yes=False)


def test_a_person_at_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    agree("remove it", yes=False)
    assert "remove it?" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with pytest.raises(click.Abort):
        agree("remove it", yes=False)


def test_this_machine_is_known_by_its_variable_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDP_NODE_NAME", "node-0")
    assert is_here("node-0")
    assert is_here(os.uname().nodename.lower())
    assert not is_here("node-1")


def test_a_plugin_in_a_pod_was_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kdp node advertise` offered to write the number of a resource that a DaemonSet serves."""
    run = tmp_path / "k/pods/uid/volumes/kubernetes.io~empty-dir/run"
    run.mkdir(parents=True)
    monkeypatch.chdir(run)  # a socket's whole path has 107 bytes
    show_plugin(monkeypatch, tmp_path / "proc", (tmp_path / "state").resolve())
    status = {"ready": True, "resources": [{"name": "example.com/widget"}], "node": "node-0", "pid": 7}
    monkeypatch.setattr(asking, "ask", lambda *_: (0, json.dumps(status)))
    monkeypatch.setenv("KDP_KUBELET_ROOT", str(tmp_path / "k"))
    monkeypatch.setenv("KDP_STATE_DIR", str(tmp_path / "state"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("plugin.sock")
        listening.listen()
        assert server_of("example.com/widget", "node-0", None) == "the plugin of process 7 (plugin.sock)"
        assert server_of("example.com/other", "node-0", None) is None
