"""``kdp status --url``: a plugin that is asked over HTTP, and what else may answer there."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from kdp import ConfigurationError
from kdp.admin.commands.status import ask_over_http as ask
from kdp.admin.commands.status import check_url
from kdp.command.app import kdp
from kdp_testkit.patience import PATIENCE

from .test_status import ANSWER

HEAD = b"HTTP/1.0 200 OK\r\nKdp-Protocol: 1\r\nContent-Type: application/json\r\n\r\n"


@contextmanager
def answering(*pieces: bytes, pause: float = 0.0, ends: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Answer one request; give the URL, and what was asked."""
    asked: list[bytes] = []
    released = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client, contextlib.suppress(OSError):
                asked.append(client.recv(10_000))
                for piece in pieces:
                    client.sendall(piece)
                    time.sleep(pause)
                if not ends:
                    released.wait(20)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            released.set()
            thread.join(20)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kdp, ["status", *arguments])


def test_it_shows_what_a_plugin_answers() -> None:
    with answering(HEAD, json.dumps({**ANSWER, "ready": True}).encode()) as (url, asked):
        result = invoke("--url", f"{url}/")
    assert result.exit_code == 0, result.output
    assert "example.com/w: waiting" in result.output
    assert asked[0].startswith(b"GET /status.json HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "url",
    ["10.0.0.7:8080", "ftp://a", "http://a:99999", "http://a\n"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--url .* for example http://10\.0\.0\.7:8080"):
        check_url(url)
    assert invoke("--url", url).exit_code == 2


def test_a_url_and_a_socket_are_two_answers() -> None:
    result = invoke("--url", "http://127.0.0.1:1", "--socket", "/a.sock")
    assert result.exit_code == 2
    assert "--url and --socket are two answers to which plugin is asked; give one" in result.output


def test_a_plugin_whose_page_is_off_says_how_to_switch_it_on() -> None:
    with answering(HEAD.replace(b"200 OK", b"403 Forbidden"), b"use kdp status\n") as (url, _):
        assert ask(url) == (1, f"{url}: shows no status over the network; start the plugin with --status-page on\n")


def test_any_other_server_is_told_from_a_plugin() -> None:
    with answering(b"HTTP/1.0 200 OK\r\n\r\n{}") as (url, _):
        assert ask(url) == (1, f"{url}: another program answers there; is this the address of a plugin?\n")
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as (url, _):
        code, text = ask(url)
        assert (code, text) == (1, f"{url}: BadStatusLine; is the plugin running, and are its probes answered there?\n")


def test_an_answer_that_drips_is_given_up_as_a_whole() -> None:
    with answering(HEAD, *([b" "] * 100), pause=0.05) as (url, _):
        began = time.monotonic()
        code, text = ask(url, deadline=0.3)
        assert time.monotonic() - began < PATIENCE
    assert (code, "no answer within 0.3 s" in text) == (1, True)
