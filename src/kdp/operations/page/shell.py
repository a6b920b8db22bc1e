"""`StatusPage`: the page as HTML, the same content as JSON for its script, and the header fields that go with both.

The policy allows the one script and the one style sheet that are in the page, by their digests, and to ask this server.
Everything else is forbidden: whatever gets into the page neither runs nor loads anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from ...errors import printable
from .markup import LONGEST
from .view import content, title_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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
<noscript><meta http-equiv="refresh" content="{seconds}"></noscript>
<style>{style}</style>
</head>
<body>
<p id="connection" role="status"></p>
<div id="page">{content}</div>
<footer>
<p>This page shows what the process serves, and refreshes itself.
Programs read <a href="/status.json">/status.json</a>.</p>
</footer>
<script>{script}</script>
</body>
</html>
"""


@final
class StatusPage:
    """Shows status documents. Its texts are read when it is made.

    Attributes:
        headers: Header fields of the page.
        document_headers: Header fields of the documents beside it.
    """

    def __init__(self) -> None:
        self._style = _HERE.joinpath("style.css").read_text(encoding="utf-8")
        self._script = _HERE.joinpath("script.js").read_text(encoding="utf-8")
        policy = {
            "default-src": "'none'",
            "script-src": _digest(self._script),
            "style-src": _digest(self._style),
            "img-src": "data:",  # the icon, which is empty
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        text = "; ".join(f"{name} {value}" for name, value in policy.items())
        self.headers = (("Content-Security-Policy", text), *_COMMON)
        self.document_headers = (
            ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
            *_COMMON,
        )

    def html(self, document: Mapping[str, Any]) -> str:
        """Return the page. It may take 0.1 s for thousands of devices: call it outside the event loop."""
        return _SHELL.format(
            title=html.escape(_title(document)),
            seconds=WITHOUT_SCRIPT,
            style=self._style,
            content=content(document, datetime.now(UTC)).as_html(),
            script=self._script,
        )

    def tree(self, document: Mapping[str, Any]) -> str:
        """Return the same content for the page's script, as a line of JSON."""
        found = {"title": _title(document), "content": content(document, datetime.now(UTC)).as_json()}
        return f"{json.dumps(found)}\n"


def _title(document: Mapping[str, Any]) -> str:
    return printable(title_of(document), LONGEST)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
