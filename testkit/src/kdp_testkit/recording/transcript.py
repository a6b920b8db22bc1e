"""The file that a recording is: JSON lines, each whole in itself, readable with a pager and with ``jq``.

The first line says what the file is; each line after it is one `Entry`; the last one is ``closed``, so that a file that
was cut off in the middle is known for one. The lines of a call carry its number; the calls that a kubelet makes on a
plugin carry the number of the Register to which their connection belongs.

========== =========================================================================================================
what       meaning
========== =========================================================================================================
kubelet    the kubelet takes registrations (``state``: listening) or does not any more (gone)
plugin     the plugin's process, where the recorder has started it: started, ended
call       a call begins; ``from`` is who makes it, ``message`` its request
answer     one answer of a call: the only one, or one of the lists of ListAndWatch; ``from`` is who gives it
end        a call ends without an answer, or a stream ends; ``from`` is whose doing it was, ``code`` and ``detail`` say
how closed     the recording ends
========== =========================================================================================================

Messages are decoded, with the names of the protocol's own files. Where the decoded form would not be the whole truth
(unknown fields, no valid message) the bytes stand beside it, in base64, as ``bytes``.

No gRPC here. What is left out of a file on purpose is replaced in `redaction`, before it is written.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import attrs
from google.protobuf.message import DecodeError, Message

from kdp.errors import KdpError
from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.storage import files, parse_json, reading

from .redaction import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .redaction import Redaction

FORMAT: Final = "kdp-recording"
VERSION: Final = 1

MAX_BYTES: Final = 64 << 20
"""Size limit of a recording that is read."""

MAX_SECONDS: Final = 1e9
"""A recording is not longer than some decades."""

Side = Literal["kubelet", "plugin"]

_MESSAGES: Final[Mapping[str, tuple[type[Message], type[Message]]]] = {
    "Register": (v1beta1.RegisterRequest, v1beta1.Empty),
    "GetDevicePluginOptions": (v1beta1.Empty, v1beta1.DevicePluginOptions),
    "ListAndWatch": (v1beta1.Empty, v1beta1.ListAndWatchResponse),
    "GetPreferredAllocation": (v1beta1.PreferredAllocationRequest, v1beta1.PreferredAllocationResponse),
    "Allocate": (v1beta1.AllocateRequest, v1beta1.AllocateResponse),
    "PreStartContainer": (v1beta1.PreStartContainerRequest, v1beta1.PreStartContainerResponse),
}


class RecordingError(KdpError):
    """A recording cannot be made or read: the text names the file, the line and the reason."""


# Messages -------------------------------------------------------------------------------------------------------------


def decode(method: str, payload: bytes, *, answer: bool) -> dict[str, Any]:
    """Return what a line says of a message: ``message``, ``bytes``, or both.

    Args:
        method: The call's name without its service.
        payload: The message as it came.
        answer: Whether it is the answer or the request.
    """
    raw = {"bytes": base64.b64encode(payload).decode()}
    if method not in _MESSAGES:
        return raw
    message = _MESSAGES[method][answer]()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        return raw
    decoded = _as_json(message)
    whole = _from_json(_MESSAGES[method][answer](), decoded)
    is_all = whole.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    return {"message": decoded} if is_all else {"message": decoded, **raw}


def encode(method: str, content: Mapping[str, Any], *, answer: bool) -> bytes:
    """Return the message of a line: its bytes if they are there, or what it says, encoded.

    Raises:
        ValueError: It says something that the message has no place for.
    """
    if "bytes" in content:
        return base64.b64decode(content["bytes"], validate=True)
    if method not in _MESSAGES:
        raise ValueError(f"{method} is not a method that could be encoded")
    try:
        return _from_json(_MESSAGES[method][answer](), content.get("message", {})).SerializeToString()
    except (AttributeError, TypeError) as error:
        raise ValueError(f"this is no {'answer' if answer else 'request'} of {method}: {error}") from None


def _as_json(message: Message) -> dict[str, Any]:
    """Return every field with its value, also those that have their default: NUMA node 0 must be seen."""
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value: Any = getattr(message, field.name)
        if isinstance(value, MutableMapping):
            out[field.name] = dict(sorted(cast("MutableMapping[str, str]", value).items()))
        elif isinstance(value, MutableSequence):
            items: Sequence[Any] = getattr(message, field.name)
            out[field.name] = [_as_json(item) if isinstance(item, Message) else item for item in items]
        elif not isinstance(value, Message):
            out[field.name] = value
        elif message.HasField(field.name):
            out[field.name] = _as_json(value)
    return out


def _from_json(message: Message, content: Mapping[str, Any]) -> Message:
    for name, value in content.items():
        here: Any = getattr(message, name)
        if isinstance(here, MutableMapping):
            cast("MutableMapping[str, str]", here).update(value)
        elif isinstance(here, MutableSequence):
            for item in value:
                if isinstance(item, Mapping):
                    _from_json(cast("Any", here).add(), cast("Mapping[str, Any]", item))
                else:
                    cast("Any", here).append(item)
        elif isinstance(here, Message):
            here.SetInParent()
            _from_json(here, value)
        else:
            setattr(message, name, value)
    return message


# Writing --------------------------------------------------------------------------------------------------------------


class Writer:
    """Writes a recording, line by line; a line that is written can be read at once.

    A disk that is full must not stand between a kubelet and its plugin: the first error is kept, and writing stops.

    Args:
        path: The file; it must not be there yet.
        redaction: What is left out.
        profile: Which kubelet it is, if that is known.

    Attributes:
        error: Why nothing is written any more; None: all is well.
        on_error: Called when writing has stopped; None: nobody is.

    Raises:
        RecordingError: The file is there already, or cannot be made.
    """

    def __init__(
        self,
        path: Path,
        *,
        redaction: Redaction,
        profile: str | None = None,
    ) -> None:
        from kdp._version import __version__

        self.path = path
        self.error: str | None = None
        self.on_error: Callable[[], None] | None = None
        self._redaction = redaction
        self._began = time.monotonic()
        self._calls = 0
        try:
            # Environment values are nobody else's business.
            self._file = open(path, "x", encoding="utf-8", opener=_private)  # noqa: SIM115 - closed by close()
        except FileExistsError:
            raise RecordingError(f"{path} is there already, and is not overwritten; name another file") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be written ({error.strerror}); name another file") from None
        self._put(
            {
                "format": FORMAT,
                "version": VERSION,
                "kdp": __version__,
                "started": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "profile": profile,
                "redacted": sorted(redaction.kinds),
            }
        )

    @property
    def calls(self) -> int:
        """How many calls were written."""
        return self._calls

    def kubelet(self, state: Literal["listening", "gone"], reason: str = "") -> None:
        """Write that the kubelet takes registrations, or does not any more."""
        self._line("kubelet", state=state, **({"reason": reason} if reason else {}))

    def plugin(self, state: Literal["started", "ended"], **fields: Any) -> None:
        """Write that the plugin's process was started or has ended."""
        self._line("plugin", state=state, **fields)

    def call(self, side: Side, method: str, payload: bytes, *, resource: str, registration: int | None = None) -> int:
        """Write that a call begins and return its number; of a Register that is its connection's number, too."""
        self._calls += 1
        number = self._calls
        self._line(
            "call",
            call=number,
            **{"from": side},
            method=method,
            registration=number if registration is None else registration,
            resource=resource,
            **self._redaction.content(method, decode(method, payload, answer=False), answer=False),
        )
        return number

    def answer(self, number: int, side: Side, method: str, payload: bytes) -> None:
        """Write an answer of a call."""
        content = self._redaction.content(method, decode(method, payload, answer=True), answer=True)
        self._line("answer", call=number, **{"from": side}, **content)

    def end(self, number: int, side: Side, code: str, detail: str) -> None:
        """Write that a call has failed, was given up, or that a stream has ended."""
        self._line("end", call=number, **{"from": side}, code=code, detail=self._redaction.text(detail))

    def _line(self, what: str, **fields: Any) -> None:
        self._put({"t": round(time.monotonic() - self._began, 6), "what": what, **fields})

    def _put(self, fields: dict[str, Any]) -> None:
        if self.error is None and not self._file.closed:
            try:
                self._file.write(json.dumps(fields, ensure_ascii=False) + "\n")
                self._file.flush()
            except (OSError, ValueError) as error:
                self.error = f"{self.path} can no longer be written: {getattr(error, 'strerror', None) or error}"
                if self.on_error is not None:
                    self.on_error()

    def close(self) -> None:
        """Write the last line. What comes later is not written. Idempotent."""
        if not self._file.closed:
            self._line("closed")
            try:
                self._scrub()
                self._file.close()
            except OSError as error:
                self.error = self.error or f"{self.path} can no longer be written: {error.strerror}"

    def _scrub(self) -> None:
        """Leave out of the texts written so far what only a later line has shown to be a value of the environment."""
        if "env" not in self._redaction.kinds or self.error is not None:
            return
        self._file.flush()
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        scrubbed = [
            {**line, **{k: self._redaction.scrub(line[k]) for k in ("detail", "reason") if k in line}} for line in lines
        ]
        if scrubbed != lines:
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in scrubbed)
            files.replace(self.path, text.encode(errors="surrogatepass"), mode=0o600, sync="nothing")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Reading --------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Entry:
    """One line of a recording.

    Attributes:
        line: Its number in the file.
        time: Seconds since the recording began.
        what: See the module's docstring.
        call: The call's number; 0 where there is none.
        side: Who calls, answers or ends it.
        method: The call's name; also in its answers and its end.
        resource: The call's resource.
        registration: The number of the Register to whose connection the call belongs.
        content: ``message`` and ``bytes`` of a call or an answer.
        state: Of the kubelet or the plugin's process.
        code: How it ended.
        detail: The text of that.
    """

    line: int
    time: float
    what: str
    call: int = 0
    side: Side = "kubelet"
    method: str = ""
    resource: str = ""
    registration: int = 0
    content: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    state: str = ""
    code: str = ""
    detail: str = ""


@attrs.frozen(kw_only=True)
class Recording:
    """A recording that was read.

    Attributes:
        path: Where it was read from.
        profile: Which kubelet it was, if that was known.
        redacted: What was left out: ``env``, ``paths``.
        entries: In the order in which things happened.
        is_whole: Whether it was closed; False: it is cut off after the last entry.
    """

    path: Path
    profile: str | None
    redacted: frozenset[str]
    entries: Sequence[Entry]
    is_whole: bool


def read(path: str | Path, *, partial: bool = False) -> Recording:
    """Read a recording.

    Args:
        path: The file.
        partial: Take what there is of a file that is cut off.

    Raises:
        RecordingError: It is no recording, of an unknown version, damaged, or cut off.
    """
    path = Path(path)
    try:
        lines = reading.read(path, limit=MAX_BYTES).split(b"\n")
    except OSError as error:
        raise RecordingError(f"{path} cannot be read ({error.strerror}); give what kdp record wrote") from None
    header = _header(path, lines[0])
    entries: list[Entry] = []
    calls: dict[int, Entry] = {}
    last = len(lines) - 1  # what stands behind the last line break: nothing, or a line that was cut
    for number, line in enumerate(lines[1:], start=2):
        if entries and entries[-1].what == "closed":
            break
        if number - 1 == last:
            break
        try:
            entries.append(_entry(number, _checked(parse_json(line)), calls))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else str(error)[:300]
            raise RecordingError(f"{path}, line {number}: is not a line of a recording: {reason}") from None
    is_whole = bool(entries) and entries[-1].what == "closed"
    if not is_whole and not partial:
        at = f"after line {entries[-1].line}, {entries[-1].time:.1f} s" if entries else "after its first line"
        raise RecordingError(
            f"{path} is cut off {at} from its beginning: the closing line is missing. Record again, or replay what "
            "there is of it (--partial)"
        )
    return Recording(
        path=path,
        profile=header.get("profile"),
        redacted=frozenset(header.get("redacted", ())),
        entries=entries,
        is_whole=is_whole,
    )


def _header(path: Path, line: bytes) -> dict[str, Any]:
    header: dict[str, Any] = {}
    try:
        header = parse_json(line)
        is_ours = header["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise RecordingError(f"{path} is not a recording: its first line does not say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise RecordingError(
            f"{path} is a recording of version {repr(header.get('version'))[:40]}; this kdp reads version {VERSION}"
            + (f" (the file was written by kdp {str(header['kdp'])[:40]})" if "kdp" in header else "")
        )
    profile: object = header.get("profile")
    redacted: object = header.get("redacted", [])
    if not (profile is None or isinstance(profile, str)):
        raise RecordingError(f"{path}, line 1: profile must be a text or null, for example 'k137'")
    if not isinstance(redacted, list) or any(kind not in KINDS for kind in cast("list[object]", redacted)):
        raise RecordingError(f"{path}, line 1: redacted must be a list of {', '.join(KINDS)}")
    return header


_STATES: Final = ("kubelet", "plugin")
_KINDS: Final = (*_STATES, "call", "answer", "end", "closed")

_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("what", "state", "from", "method", "resource", "code", "detail", "reason", "bytes"), str),
    **dict.fromkeys(("call", "registration"), int),
    "message": dict,
}


def _checked(fields: Any) -> dict[str, Any]:
    """Return a line's fields if each has its type.

    Raises:
        TypeError: It is no object.
        ValueError: A field has not; the text names it.
    """
    if not isinstance(fields, dict):
        raise TypeError("it is not an object")
    line = cast("dict[str, Any]", fields)
    for name, kind in _TYPES.items():
        if name in line and (not isinstance(line[name], kind) or isinstance(line[name], bool)):
            raise ValueError(f"{name} is {repr(line[name])[:60]}, expected {kind.__name__}")
    if not 0 <= (seconds := float(line["t"])) <= MAX_SECONDS:
        raise ValueError(f"t is {seconds}, expected seconds from 0 to {MAX_SECONDS:.0f}")
    return line


def _entry(line: int, fields: dict[str, Any], calls: dict[int, Entry]) -> Entry:
    what = fields["what"]
    if what not in _KINDS:
        raise ValueError(f"it has the unknown kind {what!r}")
    entry = Entry(line=line, time=float(fields["t"]), what=what, state=str(fields["state"]) if what in _STATES else "")
    if what in (*_STATES, "closed"):
        return entry
    side = fields["from"]
    if side not in ("kubelet", "plugin"):
        raise ValueError(f"it comes from {side!r}, expected kubelet or plugin")
    number = int(fields["call"])
    if what == "call":
        method, resource, registration = str(fields["method"]), str(fields["resource"]), int(fields["registration"])
    elif number in calls:
        call = calls[number]
        method, resource, registration = call.method, call.resource, call.registration
    else:
        raise ValueError(f"it belongs to call {number}, which no line above began")
    entry = attrs.evolve(entry, call=number, side=side, method=method, resource=resource, registration=registration)
    if what == "end":
        return attrs.evolve(entry, code=str(fields["code"]), detail=str(fields.get("detail", "")))
    content: dict[str, Any] = {name: fields[name] for name in ("message", "bytes") if name in fields}
    entry = attrs.evolve(entry, content=_complete(method, content, answer=what == "answer"))
    if what == "call":
        calls[number] = entry
    return entry


def _complete(method: str, content: dict[str, Any], *, answer: bool) -> dict[str, Any]:
    """Return it with every field, also those that a person left out who wrote the line."""
    if "bytes" in content:
        return content
    return decode(method, encode(method, content, answer=answer), answer=answer)
