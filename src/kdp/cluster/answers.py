"""What the API server answered, made of bytes: an object, an event of a watch, or an `ApiError` for what it is not.

Whatever the bytes are, no other exception comes out: a proxy's page, a half of a line, a deeply nested text. Without
I/O.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, cast

from ..storage.documents import MAX_DEPTH, bounded
from .api import ApiError, Object, OddAnswerError, WatchEvent

_MOST_OF_MESSAGE: Final = 400
_MOST_OF_BEGIN: Final = 60
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')
"""Texts, so that no bracket in them counts, and brackets."""

_LONGEST_NUMBER: Final = 300
"""Characters of a number; a float can hold it."""

LEFT_OUT: Final = "(left out: nested too deeply, or a number with too many digits)"
"""What stands for a part of an answer that is not read. It is refused wherever such a part could be meant."""

_KINDS: Final[dict[type, str]] = {str: "text", dict: "an object", list: "a list"}


def object_of(content: bytes, what: str, kind: str | None = None) -> Object:
    """Return the object that was asked for; what is in it is taken as it is.

    Raises:
        OddAnswerError: It is no JSON, no object, of another kind, or says that something failed although the request
            did not.
    """
    try:
        found = _json(content)
    except ValueError as error:
        begin = content[:_MOST_OF_BEGIN].decode(errors="replace")
        raise OddAnswerError(what, f"its answer is not JSON ({cut(str(error))}), it begins with {begin!r}") from None
    if not isinstance(found, dict):
        raise OddAnswerError(what, f"it must be an object, this is {cut(content.decode(errors='replace'))}")
    answer = cast("Object", found)
    if answer.get("kind") == "Status" and answer.get("status") != "Success":
        raise OddAnswerError(what, f"the HTTP status is good, but the answer says {cut(str(answer.get('message')))!r}")
    if kind is not None and answer.get("kind") != kind:
        raise OddAnswerError(what, f"it must be a {kind}, this is {cut(content.decode(errors='replace'))}")
    return answer


def check_deleted(answer: Object, name: str, what: str) -> None:
    """Check that an answer tells that an object is deleted, or will be when its finalizers have gone.

    Raises:
        OddAnswerError: It is neither a Status nor the object, so the object may well be there.
    """
    metadata: Any = answer.get("metadata")
    is_object = isinstance(metadata, dict) and cast("Object", metadata).get("name") == name
    if answer.get("kind") != "Status" and not is_object:
        raise OddAnswerError(what, f"it must be a Status, or the deleted object, this is {cut(repr(answer))}")


def _json(content: bytes) -> Any:
    """Return an answer's value; without the costs of `kdp.storage.parse_json`, because lists have megabytes.

    The parameters of a claim are any JSON of its author, in one list with all other claims. So a part that no reader
    should follow is replaced by `LEFT_OUT`, and the rest of the answer is read.
    """
    try:
        return bounded(lambda: json.loads(content))
    except ValueError:  # which may be why, as Python has a limit for digits, too
        return bounded(lambda: json.loads(_shallow(content), parse_int=_whole))


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= _LONGEST_NUMBER else LEFT_OUT


def _shallow(content: bytes) -> bytes:
    """Return a JSON text with `LEFT_OUT` for each list and object that is too deep in it."""
    parts: list[bytes] = []
    depth = at = 0
    for match in _BRACKETS.finditer(content):
        first = content[match.start()]
        if first in b"[{":
            depth += 1
            if depth == MAX_DEPTH:
                parts += [content[at : match.start()], b'"', LEFT_OUT.encode(), b'"']
        elif first in b"]}":
            if depth == MAX_DEPTH:
                at = match.end()
            depth -= 1
    return b"".join([*parts, content[at:]])


def field_of(found: Any, name: str, kind: type, what: str) -> Any:
    """Return a field of an object.

    Raises:
        OddAnswerError: It is not there, or of another kind.
    """
    value = found.get(name)
    if not isinstance(value, kind):
        raise OddAnswerError(what, f"{name} must be {_KINDS[kind]}, this is {cut(repr(value))}")
    return value


def event_of(line: bytes, what: str) -> WatchEvent:
    """Return the event that a line of a watch tells.

    Raises:
        ApiError: The line tells that the watch has ended, or is none.
    """
    event = object_of(line, what)
    item = field_of(event, "object", dict, what)
    if event.get("type") != "ERROR":
        return WatchEvent(field_of(event, "type", str, what), item)
    message, reason, code, wait = _told(item)
    raise ApiError(f"{what}: the API server ended it: {cut(message)}", status=code, reason=reason, retry_after=wait)


def _told(status: Any) -> tuple[str, str, int, float | None]:
    """Return what a Status says, as far as it does: its message, its reason, its code, and the seconds to wait."""
    code, details = status.get("code"), status.get("details")
    return (
        str(status.get("message") or ""),
        str(status.get("reason") or "")[:_MOST_OF_MESSAGE],
        code if isinstance(code, int) and 0 <= code < 1000 else 0,
        _seconds(cast("Object", details).get("retryAfterSeconds")) if isinstance(details, dict) else None,
    )


def refused(code: int, phrase: str, content: bytes, what: str, *, retry_after: str | None) -> ApiError:
    """Return the error for an answer of 400 or more.

    Args:
        code: The HTTP status.
        phrase: The words beside it.
        content: The answer's content.
        what: What was asked.
        retry_after: The header ``Retry-After``.
    """
    try:
        message, reason, told_code, told_wait = _told(_json(content))
    except (ValueError, AttributeError):  # a proxy's page, or nothing
        message, reason, told_code, told_wait = content[: 4 * _MOST_OF_MESSAGE].decode(errors="replace"), "", 0, None
    if (
        code == 404 and told_code != code and reason != "NotFound"
    ):  # it may well be there: somebody else was asked, or for another version
        return OddAnswerError(what, f"404 is not the API server's own: {cut(message) or 'it gives no reason'}")
    message = cut(message) or "it gave no reason"
    wait = _seconds(retry_after)
    text = f"{what}: the API server answered {code} {reason or phrase}: {message}"
    if code == 401:
        text = (
            f"{what}: the API server rejects the credentials (401): the token or certificate is not valid there, "
            "or has expired"
        )
    elif code == 403 and "cannot " in message:  # and not an admission policy's own words
        verb, resource = what.split()[:2]
        text += f"; a role must grant the verb {verb!r} on {resource!r}"
    return ApiError(text, status=code, reason=reason, retry_after=told_wait if wait is None else wait)


def _seconds(value: Any) -> float | None:
    """Return the seconds that ``Retry-After`` says; None: it says none. A date is not understood, as in client-go."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def cut(message: str) -> str:
    """Return a text as one line that is not too long for a message."""
    text = " ".join(message[: 4 * _MOST_OF_MESSAGE].split())
    return text if len(text) <= _MOST_OF_MESSAGE else f"{text[:_MOST_OF_MESSAGE]}..."
