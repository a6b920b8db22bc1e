"""What answers at a plugin's HTTP port."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message

from kdp_testkit.patience import PATIENCE


def fetch(url: str | urllib.request.Request) -> tuple[int, Message, str]:
    """Return status, headers, and body, whatever the status is."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - the plugin's own
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()
