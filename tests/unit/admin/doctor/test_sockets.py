"""Sockets: absent, dead, silent, of something else, or answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.nobody import as_nobody
from tests.one_answer import answering

from kdp.admin.doctor import sockets
from kdp.admin.doctor.answers import Answer
from kdp.admin.doctor.node import Node, Once, Target

from .samples import dead, listening, node_in, resource, status, told, written

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATIENCE", 0.3)


def test_no_kubelet_sock(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    verdict, text = told(sockets.kubelet_socket(node))
    assert verdict == "failed"
    assert "there is no" in text
    assert "journalctl -u kubelet" in text
    assert told(sockets.kubelet_answers(node))[0] == "not known"


def test_a_kubelet_sock_that_nobody_listens_on(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    dead(node.paths.kubelet_socket)
    verdict, text = told(sockets.kubelet_socket(node))
    assert verdict == "failed"
    assert "nobody listens on" in text
    assert told(sockets.kubelet_answers(node))[0] == "not known"


def test_a_kubelet_that_does_nothing(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    with listening(node.paths.kubelet_socket):
        assert told(sockets.kubelet_socket(node))[0] == "ok"
        verdict, text = told(sockets.kubelet_answers(node))
        assert verdict == "failed"
        assert f"process {os.getpid()} listens on" in text
        assert "did not answer within 0.3 s | restart the kubelet" in text
        written(tmp_path / f"host/proc/{os.getpid()}/stat", f"{os.getpid()} (odd) name) T 1 1")
        assert f"is stopped | let it run again: kill -CONT {os.getpid()}" in told(sockets.kubelet_answers(node))[1]


@pytest.mark.parametrize(("answer", "verdict"), [(SETTINGS, "ok"), (b"HTTP/1.1 400", "failed")])
def test_a_kubelet_that_answers(tmp_path: Path, answer: bytes, verdict: str) -> None:
    node = node_in(tmp_path)
    with answering(node.paths.kubelet_socket, answer):
        found, text = told(sockets.kubelet_answers(node))
    assert found == verdict
    assert verdict == "ok" or "is not a gRPC server" in text


def test_a_flood_of_bytes_is_not_read(tmp_path: Path) -> None:
    ask: Callable[[Node], Answer | None] = sockets.kubelet_answers
    node = node_in(tmp_path)
    path = node.paths.kubelet_socket if ask is sockets.kubelet_answers else node.paths.pod_resources_socket
    with answering(path, SETTINGS + b"x" * 100_000):
        assert told(ask(node))[0] == "ok"


def test_the_pod_resources_api(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    path = node.paths.pod_resources_socket
    assert "there is no" in told(sockets.pod_resources(node))[1]
    dead(path)
    assert told(sockets.pod_resources(node))[0] == "warning"
    assert "nobody listens" in told(sockets.pod_resources(node))[1]
    path.unlink()
    with listening(path):
        assert "did not answer within 0.3 s" in told(sockets.pod_resources(node))[1]
    path.unlink()
    with answering(path, SETTINGS):
        assert told(sockets.pod_resources(node))[0] == "ok"


def test_the_plugin(tmp_path: Path) -> None:
    verdict, text = told(sockets.plugin(node_in(tmp_path)))
    assert (verdict, f"no plugin runs: the state directory {tmp_path}/state does not exist |" in text) == (
        "failed",
        True,
    )
    (tmp_path / "state").mkdir()
    verdict, text = told(sockets.plugin(node_in(tmp_path)))
    assert (verdict, "no plugin has a socket in" in text) == ("failed", True)
    inode = written(tmp_path / "state/w.dra.lock", "").stat().st_ino
    written(tmp_path / "host/proc/locks", f"1: FLOCK  ADVISORY  READ 4711 08:01:{inode} 0 EOF\n")
    assert "although process 4711 holds the lock w.dra.lock" in told(sockets.plugin(node_in(tmp_path)))[1]
    assert "there is no state directory" in told(sockets.plugin(node_in(tmp_path, state_dir=None)))[1]
    gone = f"{tmp_path}/0.sock: Connection refused; is the plugin running, and is this its socket?\n"
    verdict, text = told(sockets.plugin(node_in(tmp_path, gone)))
    assert verdict == "failed"
    assert f"{tmp_path}/0.sock: Connection refused |" in text
    verdict, text = told(sockets.plugin(node_in(tmp_path, status(resource()), "nobody answers")))
    assert verdict == "warning"
    verdict, text = told(sockets.plugin(node_in(tmp_path, status(resource()), gone.replace("0.sock", "1.sock"))))
    assert (verdict, f"left it behind; remove it: rm {tmp_path}/1.sock" in text) == ("warning", True)
    verdict, text = told(sockets.plugin(node_in(tmp_path, status(resource()))))
    assert verdict == "ok"
    assert "0.sock is of kdp 0.1.0, process 7" in text


def test_no_plugin_was_said_to_run_where_this_user_may_not_look(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0)
    with as_nobody():
        verdict, text = told(sockets.plugin(node_in(tmp_path)))
    assert verdict == "not known"
    assert text.startswith(
        f"the state directory {tmp_path}/state cannot be read (Permission denied) | run this as root"
    )


def test_a_stopped_plugin_was_to_be_restarted_because_it_was_silent(tmp_path: Path) -> None:
    node = node_in(tmp_path, "no answer within 2 s")
    written(tmp_path / f"host/proc/{os.getpid()}/stat", f"{os.getpid()} (kdp) T 1 1")
    with listening(tmp_path / "0.sock"):
        verdict, text = told(sockets.plugin(node))
    assert verdict == "failed"
    assert text == f"{tmp_path}/0.sock: process {os.getpid()} is stopped | let it run again: kill -CONT {os.getpid()}"


def test_a_plugin_that_cannot_start_was_only_a_warning_without_a_way_to_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    verdict, text = told(sockets.plugin(node_in(tmp_path, environ={"KDP_NODE_NAME": "n1"})))
    assert (verdict, "no plugin runs: no plugin has a socket in" in text) == ("failed", True)
    assert text.endswith("previous container: kubectl get pods -A --field-selector spec.nodeName=n1")
    written(tmp_path / "account/namespace", "kube-system")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "w-x7k2p"}
    target = Once(lambda: Target(label="W", resources=(), needs=None))
    text = told(sockets.plugin(node_in(tmp_path, environ=pod, target=target)))[1]
    assert "see why it ended: kubectl -n kube-system logs w-x7k2p --previous; the answer about the target" in text
