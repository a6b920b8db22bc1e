"""Which pages show the status, and to whom."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from kdp.daemon.probes import status_pages
from kdp.operations import page as page_module


def document(seen: str | None) -> Mapping[str, object]:
    rest: dict[str, object] = {
        "reason": seen,
        "configuration": None,
        "absent": None,
        "kubelet": None,
        "backends": [],
        "resources": [],
    }
    process = {"kdp": "0.1.0", "pid": 7, "mode": "dra", "node": None, "started": "2026-03-04T09:00:00+00:00"}
    return {**process, "ready": False, "events": None, **rest}


def test_without_the_page_only_the_socket_has_the_document() -> None:
    pages = status_pages(lambda: "seen", document, False)
    assert {path: page.is_private for path, page in pages.items()} == {"/status.json": True}
    assert json.loads(pages["/status.json"].show("x\x1b"))["reason"] == "x\\x1b"


def test_with_it_whoever_reaches_the_port_has_both() -> None:
    pages = status_pages(lambda: "seen", document, True)
    assert {path: (page.kind, page.is_private) for path, page in pages.items()} == {
        "/": ("text/html", False),
        "/page.json": ("application/json", False),
        "/status.json": ("application/json", False),
    }
    assert "<!DOCTYPE html>" in pages["/"].show(pages["/"].look())
    assert json.loads(pages["/page.json"].show("x"))["title"] == "Not ready: devices of this node"
    assert json.loads(pages["/status.json"].show(None))["reason"] is None


def test_many_clients_share_an_answer_and_each_answer_has_its_policy() -> None:
    for page in status_pages(lambda: "seen", document, True).values():
        assert page.pause > 0
        assert page.names_pods
        headers = dict(page.headers)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_page_whose_files_cannot_be_read_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(page_module, "StatusPage", refuse)
    pages = status_pages(lambda: "seen", document, True)
    assert {path: each.is_private for path, each in pages.items()} == {"/status.json": True}
    assert "going on without the status page: [Errno 24] Too many open files" in caplog.text
