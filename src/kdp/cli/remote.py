"""Asks a plugin whose status page is on over HTTP, from this machine or another one."""

from __future__ import annotations

import http.client
import time
from contextlib import closing
from typing import Final
from urllib.parse import urlsplit

from ..errors import ConfigurationError, printable
from . import asking

DEADLINE: Final = 10.0
"""Seconds for the whole answer, which may cross a network."""

ROUTE: Final = "/status.json"

_CHUNK: Final = 1 << 16
_SHOWN: Final = 200


def check_url(url: str) -> str:
    """Return a plugin's URL without a slash at its end.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    else:
        is_one = is_one and url.isascii() and url.isprintable() and not (" " in url or parts.query or parts.fragment)
    if not is_one:
        raise ConfigurationError(
            f"--url {printable(url, _SHOWN)!r}: must be where the plugin's probes are answered, for example "
            "http://10.0.0.7:8080"
        )
    return url.rstrip("/")


def ask(url: str, *, deadline: float | None = None, most: int = asking.MOST_BYTES) -> tuple[int, str]:
    """Ask for a plugin's status; return 0 and the document, else 1 and the reason.

    Args:
        url: As `check_url` returned it.
        deadline: Seconds for the whole answer; None: `DEADLINE`.
        most: Bytes of the answer.
    """
    deadline = DEADLINE if deadline is None else deadline
    until = time.monotonic() + deadline
    parts = urlsplit(url)
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        with closing(made(parts.hostname or "", parts.port, timeout=deadline)) as connection:
            connection.request("GET", f"{parts.path}{ROUTE}")
            answer = connection.getresponse()
            body = bytearray()
            while chunk := answer.read1(_CHUNK):
                body += chunk
                if len(body) > most:
                    return 1, f"{url}: its answer has more than {most >> 20} MiB; is this the address of a plugin?\n"
                if time.monotonic() > until:
                    raise TimeoutError
                if connection.sock is not None:  # None: the answer is complete
                    connection.sock.settimeout(max(until - time.monotonic(), 0.001))
    except (OSError, http.client.HTTPException) as error:
        late = isinstance(error, TimeoutError)
        reason = (
            f"no answer within {deadline:g} s" if late else getattr(error, "strerror", None) or type(error).__name__
        )
        return 1, f"{url}: {reason}; is the plugin running, and are its probes answered there?\n"
    text = body.decode(errors="replace")
    if answer.headers.get("Kdp-Protocol") != "1":
        return 1, f"{url}: another program answers there; is this the address of a plugin?\n"
    if answer.status != http.HTTPStatus.OK:
        return 1, f"{url}: shows no status over the network; start the plugin with --status-page on\n"
    return 0, text
