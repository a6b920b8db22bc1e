"""``kdp probe``: what it says of a socket. Plugins answer it in tests/integration/daemon/test_listener.py."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdp.cli import asking
from kdp.cli.app import kdp
from kdp.cli.asking import ask, quick


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen()

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1000)
                client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(10)


YES = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok\n"
NO = b"HTTP/1.1 503 Service Unavailable\r\n\r\nno kubelet\n"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kdp, ["probe", *arguments], env={"KDP_SOCKET": ""})


@pytest.mark.parametrize(("answer", "said"), [(YES, (0, "ok\n")), (NO, (1, "no kubelet\n")), (b"", (1, ""))])
def test_the_exit_code_is_the_answer(tmp_path: Path, answer: bytes, said: tuple[int, str]) -> None:
    with answering(tmp_path / "a.sock", answer):
        assert ask(str(tmp_path / "a.sock"), "/readyz") == said


def test_an_exec_probe_takes_the_socket_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KDP_SOCKET", str(tmp_path / "a.sock"))
    with answering(tmp_path / "a.sock", NO):
        assert quick(["ready"]) == 1
    assert capsys.readouterr().out == "no kubelet\n"
    assert [quick(other) for other in ([], ["--help"], ["ready", "--socket=x"], ["alive"])] == [None] * 4
    monkeypatch.setenv("KDP_SOCKET", "none")
    assert quick(["ready"]) is None


def test_the_one_socket_in_the_state_directory_is_asked(tmp_path: Path) -> None:
    with answering(tmp_path / "a.sock", YES):
        done = invoke("live", f"--state-dir={tmp_path}")
    assert (done.exit_code, done.output) == (0, "ok\n")


def test_none_or_several_are_told(tmp_path: Path) -> None:
    done = invoke("ready", f"--state-dir={tmp_path}")
    assert (done.exit_code, "no plugin has a socket there" in done.output) == (1, True)
    with answering(tmp_path / "a.sock", YES), answering(tmp_path / "b.sock", YES):
        done = invoke("ready", f"--state-dir={tmp_path}")
        assert (done.exit_code, "name one of them with --socket: a.sock, b.sock" in done.output) == (2, True)
        assert [invoke("ready", f"--socket={tmp_path}/{name}.sock").exit_code for name in "ab"] == [0, 0]
    assert invoke("ready", "--state-dir=none").exit_code == 2
    assert invoke("ready", "--socket=none").exit_code == 2
    assert invoke("alive").exit_code == 2


def test_who_does_not_answer_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sock"
    assert ask(str(path), "/readyz") == (
        1,
        f"{path}: No such file or directory; is the plugin running, and is this its socket?\n",
    )
    path.write_text("")
    assert ask(str(path), "/readyz")[1].startswith(f"{path}: is no socket")
    path.unlink()
    monkeypatch.setattr(asking, "DEADLINE", 0.05)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        assert "Connection refused" in ask(str(path), "/readyz")[1]
        listening.listen()
        assert "no answer within 0.05 s" in ask(str(path), "/readyz")[1]
        link = tmp_path / "link.sock"
        link.symlink_to(path)
        assert ask(str(link), "/readyz")[1].startswith(f"{link}: is no socket")


def test_another_users_process_cannot_answer_for_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sock"
    monkeypatch.setattr("struct.unpack", lambda *_: (1, 4711, 4711))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen()
        assert ask(str(path), "/readyz")[1].startswith(f"{path}: user 4711 answers there")
