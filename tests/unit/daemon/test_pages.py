"""The page with the status document, and who gets it."""

from __future__ import annotations

import json

from kdp.daemon.probes import status_page
from kdp.operations.status_document import StatusDocument


async def look() -> str:
    return "seen"


def document(seen: str | None) -> StatusDocument:
    return StatusDocument(is_ready=False, reason=seen, resources=())


def test_only_the_unix_socket_has_the_document() -> None:
    page = status_page(look, document)
    assert (page.is_private, page.kind, page.pause) == (True, "application/json", 0.0)
    assert json.loads(page.show("seen"))["reason"] == "seen"


def test_texts_of_others_print() -> None:
    page = status_page(look, document)
    assert json.loads(page.show("x\x1b"))["reason"] == "x\\x1b"
