"""`StatusPage`: the page as HTML, the same content as JSON for its script, and the header fields that go with both.

The policy allows the one script and the one style sheet that are in the page, by their digests, and to ask this server.
Everything else is forbidden: whatever gets into the page neither runs nor loads anything. A page in a file has no
script, and its policy stands in it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from ...errors import printable
from .markup import LONGEST
from .view import content, title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .markup import Element
    from .view import AskedPlugin

_HERE: Final = Path(__file__).parent

WITHOUT_SCRIPT: Final = 5
"""Seconds after which a browser without scripts loads the page again."""

_COMMON: Final = (
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)

_SHELL: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
{head}
<style>{style}</style>
</head>
<body>
{before}<div id="page">{content}</div>
<footer>
<p>{footer}</p>
</footer>
{after}</body>
</html>
"""

_LIVE: Final = "This page refreshes itself. kdp status --serve answers it, and ends with that command."
_FILE: Final = "kdp status --format html wrote this page. It does not refresh itself."


@final
class StatusPage:
    """Shows plugins. Its constructor reads the style sheet and the script.

    Attributes:
        headers: Header fields of the page that refreshes itself.
        tree_headers: Header fields of the answer to its script.
    """

    def __init__(self) -> None:
        self._style = _HERE.joinpath("style.css").read_text(encoding="utf-8")
        self._script = _HERE.joinpath("script.js").read_text(encoding="utf-8")
        self._policy = {
            "default-src": "'none'",
            "style-src": _digest(self._style),
            "img-src": "data:",  # the icon, which is empty
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        policy = {
            **self._policy,
            "script-src": _digest(self._script),
            "connect-src": "'self'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        self.headers = (("Content-Security-Policy", _text(policy)), *_COMMON)
        self.tree_headers = (
            ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
            *_COMMON,
        )

    def live(self, plugins: Sequence[AskedPlugin]) -> str:
        """Return the page that refreshes itself. It may take 0.1 s for thousands of devices."""
        return self._html(
            plugins,
            content(plugins),
            head=f'<noscript><meta http-equiv="refresh" content="{WITHOUT_SCRIPT}"></noscript>',
            before='<p id="connection" role="status"></p>\n',
            footer=_LIVE,
            after=f"<script>{self._script}</script>\n",
        )

    def file(self, plugins: Sequence[AskedPlugin]) -> str:
        """Return the page for a file. It may take 0.1 s for thousands of devices."""
        policy = html.escape(_text(self._policy))
        head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        return self._html(plugins, content(plugins, is_dated=True), head=head, before="", footer=_FILE, after="")

    def tree(self, plugins: Sequence[AskedPlugin]) -> str:
        """Return the content for the script of the page, as a line of JSON."""
        found = {"title": _title(plugins), "content": content(plugins).as_json()}
        return f"{json.dumps(found)}\n"

    def _html(
        self, plugins: Sequence[AskedPlugin], shown: Element, *, head: str, before: str, footer: str, after: str
    ) -> str:
        return _SHELL.format(
            title=html.escape(_title(plugins)),
            head=head,
            style=self._style,
            before=before,
            content=shown.as_html(),
            footer=footer,
            after=after,
        )


def _title(plugins: Sequence[AskedPlugin]) -> str:
    return printable(title_of(plugins), LONGEST)


def _text(policy: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
