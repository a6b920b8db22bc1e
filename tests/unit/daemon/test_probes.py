from __future__ import annotations

import json
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread
from tests.waiting import until

from kdp import ConfigurationError
from kdp.command.asking import ask
from kdp.daemon import probes as probes_module
from kdp.daemon.parsers import Address
from kdp.daemon.probes import Page, Probes
from kdp.daemon.readiness import Readiness
from kdp.kubelet.sockets import is_answered
from kdp_testkit.patience import PATIENCE

READY = Readiness(True, {"resources": {"example.com/widget": {"state": "connected", "reason": None}}})
NOT_READY = Readiness(False, {"resources": {"example.com/widget": {"state": "registering", "reason": "no kubelet"}}})
LOCAL = Address("127.0.0.1", 0)


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def asked(probes: Probes, path: str, method: str = "GET") -> tuple[int, str]:
    return await to_thread.run_sync(fetch, probes.url + path, method)


async def test_a_blocked_loop_is_not_alive_and_not_ready() -> None:
    answers: dict[str, tuple[int, str]] = {}
    with closing(Probes(LOCAL, lambda: READY)) as probes:
        threads = [
            threading.Thread(target=lambda path=path: answers.update({path: fetch(probes.url + path)}))
            for path in ("/livez", "/readyz")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)  # this blocks the loop: the point of the test
    assert answers["/livez"] == (
        503,
        "the event loop has not run for 1 s: a hook of the backend blocks it\n",
    )
    assert answers["/readyz"][0] == 503
    assert "has not run" in json.loads(answers["/readyz"][1])["reason"]


@pytest.mark.parametrize(("readiness", "status"), [(READY, 200), (NOT_READY, 503)])
async def test_readiness_names_each_resource_and_its_state(readiness: Readiness, status: int) -> None:
    with closing(Probes(LOCAL, lambda: readiness)) as probes:
        code, body = await asked(probes, "/readyz")
    assert code == status
    assert json.loads(body) == {"ready": status == 200, **readiness.details}


async def test_metrics_that_are_off_were_not_named_where_they_were_asked_for() -> None:
    with closing(Probes(LOCAL, lambda: READY)) as probes:
        assert await asked(probes, "/metrics") == (404, "here are /livez, /readyz; --metrics on makes /metrics\n")


def another_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host: str = sock.getsockname()[0]
    return host


async def test_readyz_showed_reasons_and_paths_to_anybody_in_the_cluster(tmp_path: Path) -> None:
    readiness: Readiness = NOT_READY
    code = 503
    host = another_address()
    with closing(Probes(Address("", 0), lambda: readiness, path=tmp_path / "a.sock")) as probes:
        port = probes.url.rpartition(":")[2]
        assert await to_thread.run_sync(fetch, f"http://{host}:{port}/readyz") == (code, "not ready\n")
        local = await to_thread.run_sync(fetch, f"http://127.0.0.1:{port}/readyz")
        await until(lambda: is_answered(tmp_path / "a.sock"))
        over_socket = await to_thread.run_sync(ask, str(tmp_path / "a.sock"), "/readyz")
    assert json.loads(local[1]) == json.loads(over_socket[1]) == {"ready": code == 200, **readiness.details}
    with closing(Probes(Address("", 0), lambda: readiness, shows_all=True)) as probes:
        port = probes.url.rpartition(":")[2]
        shown = await to_thread.run_sync(fetch, f"http://{host}:{port}/readyz")
    assert "example.com/widget" in shown[1]


async def test_a_place_that_somebody_else_has_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes_module, "TAKE_AGAIN", 0.01)
    path = tmp_path / "a.sock"
    with closing(Probes(None, lambda: READY, path=path)) as first:
        assert first.url == ""
        await until(lambda: is_answered(path))
        made = path.lstat()
        with closing(Probes(None, lambda: NOT_READY, path=path)):
            await until(lambda: "another process answers there" in caplog.text)
            assert path.lstat().st_ino == made.st_ino
            first.close()
            await until(lambda: is_answered(path))
            assert (await to_thread.run_sync(ask, str(path), "/readyz"))[0] == 1
    assert caplog.text.count("another process answers there") == 1
    assert not path.exists()


async def test_a_removed_socket_never_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes_module, "LOOK_AGAIN", 0.01)
    path = tmp_path / "state" / "a.sock"
    with closing(Probes(None, lambda: READY, path=path)):
        await until(lambda: is_answered(path))
        path.unlink()
        await until(lambda: is_answered(path))
        shutil.rmtree(path.parent)
        await until(lambda: is_answered(path))
        assert (await to_thread.run_sync(ask, str(path), "/readyz"))[0] == 0
    assert caplog.text.count("was removed, so commands could not ask this process: making it again") == 2
    assert not path.exists()


async def test_the_log_names_each_page_that_is_answered_over_tcp(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pages = {
        "/status.json": Page(look=lambda: 0, show=str, kind="text/plain", is_private=True),
        "/metrics": Page(look=lambda: 0, show=str, kind="text/plain", is_private=False),
    }
    with closing(Probes(LOCAL, lambda: READY, pages=pages)) as probes:
        url = probes.url
    assert caplog.messages == [f"health probes at {url}/livez and {url}/readyz, and {url}/metrics"]


async def test_a_page_may_wait_in_the_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> str:
        await anyio.lowlevel.checkpoint()
        return "seen"

    async def fail() -> str:
        raise ValueError("broken")

    pages = {
        "/page": Page(look=look, show=str, kind="text/plain", is_private=False),
        "/broken": Page(look=fail, show=str, kind="text/plain", is_private=False),
    }
    with closing(Probes(LOCAL, lambda: READY, pages=pages)) as probes:
        assert await asked(probes, "/page") == (200, "seen")
        with pytest.raises(OSError, match=r"closed connection|reset"):
            await asked(probes, "/broken")
    assert "ValueError: broken" in caplog.text


async def test_a_readiness_that_cannot_be_told_is_logged_and_the_next_one_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [READY]

    def readiness() -> Readiness:
        if answers:
            answers.clear()
            raise ValueError("broken")
        return READY

    with closing(Probes(LOCAL, readiness)) as probes:
        with pytest.raises(OSError, match=r"closed connection|reset"):
            await asked(probes, "/readyz")
        assert (await asked(probes, "/readyz"))[0] == 200
    assert "an HTTP request could not be answered" in caplog.text


async def test_an_address_in_use_is_refused_with_a_sentence() -> None:
    with closing(Probes(LOCAL, lambda: READY)) as probes:
        port = int(probes.url.rpartition(":")[2])
        with pytest.raises(
            ConfigurationError, match=rf"http address '127\.0\.0\.1:{port}': cannot listen there \(Addr"
        ):
            Probes(Address("127.0.0.1", port), lambda: READY)


async def test_a_thread_that_could_not_be_started_ended_the_process(
    without_threads: Callable[[], AbstractContextManager[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(probes_module, "START_AGAIN", 0.01)
    with without_threads() as refused:
        probes = Probes(LOCAL, lambda: READY)
        await until(lambda: refused.count("kdp-probes") >= 2)
    with closing(probes):
        assert await asked(probes, "/livez") == (200, "ok\n")
    assert caplog.text.count("the health probes are not answered yet: can't start new thread; trying again") == 1


def said(url: str, path: str, *hosts: str) -> bytes:
    """Return what a page answers to a request with these names."""
    place, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((place, int(port)), timeout=PATIENCE) as asking:
        fields = "".join(f"hOST: {host}\r\n" for host in hosts)
        asking.sendall(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
        answer = b""
        while received := asking.recv(4096):
            answer += received
    return answer


async def test_a_page_that_names_pods_is_refused_to_the_name_of_a_stranger(tmp_path: Path) -> None:
    """DNS rebinding: the browser of an administrator is told that the stranger's name has our address."""
    pages = {
        "/status.json": Page(look=lambda: 0, show=str, kind="application/json", is_private=False, names_pods=True),
        "/metrics": Page(look=lambda: 0, show=str, kind="text/plain", is_private=False),
    }
    path = tmp_path / "own.sock"
    with closing(Probes(LOCAL, lambda: READY, path=path, pages=pages, node="node-0.example.com")) as probes:

        async def status(path: str, *hosts: str) -> bytes:
            answer = await to_thread.run_sync(said, probes.url, path, *hosts)
            return answer.split(b" ")[1]

        for hosts in (("evil.example:8080",), ("localhost", "evil.example"), ("evil.example", "localhost")):
            assert await status("/status.json", *hosts) == b"421"
        for host in ("localhost:8080", "127.0.0.1:8080", "node-0.example.com"):
            assert await status("/status.json", host) == b"200"
        # A probe and a scraper may use any name: what they get names no pod, or was asked for by an option of its own.
        for other in ("/livez", "/readyz", "/metrics"):
            assert await status(other, "evil.example") == b"200"
        assert b"kubectl port-forward" in await to_thread.run_sync(said, probes.url, "/status.json", "evil.example")
