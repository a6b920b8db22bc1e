"""The pages that show the status: a document for programs, and perhaps a page for people; and the log's last lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .probes import Page, as_json

if TYPE_CHECKING:
    from ..operations.page import StatusPage

logger = logging.getLogger(__name__)

PAUSE: Final = 0.5
"""Seconds for which one answer is that of all clients, where anybody can ask."""

_Seen = TypeVar("_Seen")

_Document = Mapping[str, object]


def status_pages(
    look: Callable[[], _Seen], document: Callable[[_Seen | None], _Document], is_shown: bool
) -> dict[str, Page[Any]]:
    """Return the pages by their path.

    Args:
        look: Called in the watched event loop; returns what does not change any more.
        document: Makes the document of that, in the thread that answers. None: the event loop is blocked.
        is_shown: Whether people get a page, and whoever reaches the port the document.
    """
    page = _page() if is_shown else None
    if page is None:
        show = _json_of(document)
        return {"/status.json": Page(look=look, show=show, kind="application/json", is_private=True)}
    shows: dict[str, tuple[str, Callable[[_Seen | None], str]]] = {
        "/": ("text/html", lambda seen: page.html(document(seen))),
        "/page.json": ("application/json", lambda seen: page.tree(document(seen))),
        "/status.json": ("application/json", _json_of(document)),
    }
    return {
        path: Page(
            look=look,
            show=show,
            kind=kind,
            is_private=False,
            names_pods=True,
            headers=_headers(page, kind),
            pause=PAUSE,
        )
        for path, (kind, show) in shows.items()
    }


def log_page(text: Callable[[], str]) -> Page[None]:
    """Return the page of the log's last lines, for clients of the unix socket; a blocked event loop has it, too."""
    return Page(look=lambda: None, show=lambda _: text(), kind="text/plain", is_private=True)


def _page() -> StatusPage | None:
    """Return the page; None: its files cannot be read, as without a free descriptor."""
    try:
        from ..operations.page import StatusPage  # late: few plugins pay for it

        return StatusPage()
    except (OSError, ImportError) as error:
        logger.error("going on without the status page: %s", error)
        return None


def _json_of(document: Callable[[_Seen | None], _Document]) -> Callable[[_Seen | None], str]:
    return lambda seen: as_json(document(seen))


def _headers(page: StatusPage, kind: str) -> tuple[tuple[str, str], ...]:
    return page.headers if kind == "text/html" else page.document_headers
