"""``kdp probe``: what it says of a socket. Plugins answer it in tests/integration/daemon/test_listener.py."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.mounted import show_plugin
from tests.one_answer import answering

from kdp.command import asking
from kdp.command.app import kdp
from kdp.command.asking import ask, quick
from kdp.storage.addresses import MAX_SOCKET_PATH_BYTES

YES = b"HTTP/1.1 200 OK\r\nKdp-Protocol: 1\r\n\r\nok\n"
NO = b"HTTP/1.1 503 Service Unavailable\r\nKdp-Protocol: 1\r\n\r\nno kubelet\n"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kdp, ["probe", *arguments], env={"KDP_SOCKET": ""})


@pytest.mark.parametrize(("answer", "said"), [(YES, (0, "ok\n")), (NO, (1, "no kubelet\n"))])
def test_the_exit_code_is_the_answer(tmp_path: Path, answer: bytes, said: tuple[int, str]) -> None:
    with answering(tmp_path / "a.sock", answer):
        assert ask(str(tmp_path / "a.sock"), "/readyz") == said


def test_any_http_server_was_ready(tmp_path: Path) -> None:
    """A stranger's server that says 200 is no plugin; only the header says that kdp answers."""
    path = tmp_path / "a.sock"
    with answering(path, b"HTTP/1.0 200 OK\r\nServer: nginx\r\n\r\n<html>hello</html>"):
        expected = f"{path}: another program answers there; is this the socket of a plugin?\n"
        assert ask(str(path), "/readyz") == (1, expected)


def test_a_killed_plugins_socket_made_the_living_ones_ambiguous(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(tmp_path / "dead.sock"))
    with answering(tmp_path / "living.sock", YES, asked=2):  # once to see that somebody listens
        result = invoke("ready", "--state-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, "ok\n")


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


def test_a_plugin_in_a_pod_is_asked_on_its_node_although_the_path_is_longer_than_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `kdp manifests` writes has its socket in a volume, and the doctor on the node said that there is none."""
    volume = tmp_path / "kubelet/pods/3f8a5a0e-6f0c-4a58-9a3e-0e6f7c1b2d3e/volumes/kubernetes.io~empty-dir/run"
    volume.mkdir(parents=True)
    assert len(os.fsencode(volume / "plugin.sock")) > MAX_SOCKET_PATH_BYTES
    monkeypatch.setenv("KDP_KUBELET_ROOT", str(tmp_path / "kubelet"))
    (tmp_path / "state").mkdir()
    show_plugin(monkeypatch, tmp_path / "proc", (tmp_path / "state").resolve())
    (volume / "plugin.sock").symlink_to(tmp_path / "a.sock")
    with answering(tmp_path / "a.sock", YES, asked=2):  # the first looks who listens
        done = invoke("live", f"--state-dir={tmp_path}/state")
        assert (done.exit_code, "no plugin has a socket in" in done.output) == (1, True)  # no link of a pod is followed
        (volume / "plugin.sock").unlink()
        (tmp_path / "a.sock").rename(volume / "plugin.sock")
        done = invoke("live", f"--state-dir={tmp_path}/state")
    assert (done.exit_code, done.output) == (0, "ok\n")


def test_none_or_several_are_told(tmp_path: Path) -> None:
    done = invoke("ready", f"--state-dir={tmp_path}")
    assert (done.exit_code, "no plugin has a socket in" in done.output) == (1, True)
    with answering(tmp_path / "a.sock", YES, asked=2), answering(tmp_path / "b.sock", YES, asked=2):
        done = invoke("ready", f"--state-dir={tmp_path}")
        assert (
            done.exit_code,
            f"name one of them with --socket: {tmp_path}/a.sock, {tmp_path}/b.sock" in done.output,
        ) == (2, True)
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
