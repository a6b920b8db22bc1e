"""Escapes: no character that somebody else chose leaves the process as anything but a character that is seen.

Each exit gets one character of every category of Unicode, and what is known to deceive: ends of lines, colors, marks
that turn the direction of writing, tags, fillers, and lone surrogates.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kdp
from kdp.cluster import events
from kdp.command import streams
from kdp.command.failures import Refusal, line_of
from kdp.daemon.listener import Client
from kdp.daemon.logs import JsonFormatter, StderrHandler, TextFormatter
from kdp.daemon.probes import Probes
from kdp.daemon.readiness import Readiness
from kdp.dra import health, servicer
from kdp.dra.claims.prepare import JobOutcome
from kdp.errors import AllocationError, printable, sentence, within_bytes
from kdp.model.devices import Health
from kdp.proto import dra_v1_pb2 as pb
from kdp.proto import drahealth_v1_pb2 as health_pb

from .strategies import effort

DECEITS = [
    *("\x1b[2J\x1b[31mred", "a\nb", "a\r\nb", "\x07", "\b\b", "\x7f", "\x00", "\x85", "\x9b31m", "\x0b\x0c\x1c"),
    *("\u202egpj.exe", "\u2066a\u2069", "\u200b", "\u200d", "\ufeff", "\u2028", "\u2029", "\xad", "\u061c", "\u034f"),
    *("\U000e0001\U000e0041", "\U000e0100", "\ufe0f", "\u3164", "\uffa0", "\u115f", "\u2800", "\ud800", "\udc80"),
    *("\ue000", "\U0010ffff", "\ufff9", "\xa0", "\u3000", "2026-01-01T00:00:00.000Z ERROR   kdp: forged"),
]
CATEGORIES = [
    *("Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl"),
    *("No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
]
_of_categories = st.one_of(*(st.characters(categories=[cast("Any", name)]) for name in CATEGORIES))
_deceits = st.sampled_from(DECEITS).map(lambda deceit: f"before {deceit} after")
texts = st.text(_of_categories, min_size=1, max_size=40) | _deceits


def text_log(text: str) -> str:
    return TextFormatter().format(record(text))


def json_log(text: str) -> str:
    line = JsonFormatter().format(record(text))
    for value in json.loads(line).values():
        assert_seen(str(value))
    return line


def traceback_text(text: str) -> str:
    first, *more = TextFormatter().format(record("failed", error=ValueError(text))).split("\n")
    assert all(line.startswith("    ") for line in more)
    return "".join((first, *more))


def traceback_json(text: str) -> str:
    exc = json.loads(JsonFormatter().format(record("failed", error=ValueError(text))))["exc"]
    return "".join(exc.split("\n"))


def broken_line(text: str) -> str:
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    broken = record("")
    broken.msg, broken.args, broken.pathname = "%d", ("no number",), text
    return str(json.loads(handler.format(broken))["msg"])


def sentence_of(text: str) -> str:
    return sentence(AllocationError(text))


def reason(text: str) -> str:
    return Health.unhealthy(text).reason or ""


def table(text: str) -> str:
    file = io.StringIO()
    streams.console(file).print(streams.table(["ID"], [[text]]))
    head, cell = file.getvalue().removesuffix("\n").split("\n")
    assert head.strip() == "ID"
    return cell


def refusal(text: str) -> str:
    return "".join(line_of(Refusal(text)).split("\n"))


def readyz(text: str) -> str:
    details = {"resources": {text: {"reason": text, "all": [text]}}}
    body = asyncio.run(_body(details))

    def look(value: Any) -> None:
        if isinstance(value, str):
            assert_seen(value)
        elif isinstance(value, dict):
            look(list(cast("dict[str, Any]", value).items()))
        elif isinstance(value, list | tuple):
            for each in cast("list[Any]", value):
                look(each)

    look(json.loads(body))
    return "".join(body.split("\n"))


async def _body(details: Mapping[str, object]) -> str:
    probes = Probes(None, lambda: Readiness(True, details), path=None)
    try:
        return (await probes._answer("/readyz", Client(is_local=True, is_owner=True))).body  # pyright: ignore[reportPrivateUsage]
    finally:
        probes.close()


def claim_error(text: str) -> str:
    reply = pb.NodePrepareResourcesResponse.FromString(servicer.encode_prepared({"uid": JobOutcome(error=text)}))
    return reply.claims["uid"].error


def unprepare_error(text: str) -> str:
    reply = pb.NodeUnprepareResourcesResponse.FromString(servicer.encode_unprepared({"uid": JobOutcome(error=text)}))
    return reply.claims["uid"].error


def device_health(text: str) -> str:
    device = kdp.Device(id="w0", health=kdp.Health.unhealthy(text))
    reply = health_pb.NodeWatchResourcesResponse.FromString(health.encode_health("p", [device], at=0, timeout=1))
    return reply.devices[0].message


class Api:
    message = ""

    async def create_event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        self.message = event["message"]
        return {}


def event(text: str) -> str:
    api = Api()
    asyncio.run(events.EventRecorder(api, "widget.example.com", "node").warn("Odd", text))
    return api.message


EXITS: dict[str, Callable[[str], str]] = {
    "text log": text_log,
    "JSON log": json_log,
    "traceback in the text log": traceback_text,
    "traceback in the JSON log": traceback_json,
    "a line that could not be made": broken_line,
    "sentence": sentence_of,
    "reason": reason,
    "table": table,
    "refusal": refusal,
    "readyz": readyz,
    "error of Prepare": claim_error,
    "error of Unprepare": unprepare_error,
    "health of a device": device_health,
    "Event": event,
}


def record(message: str, *, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord(f"kdp.{message}", logging.WARNING, __file__, 1, "%s", (message,), info)
    vars(made).update(device_id=f"id {message}", seconds=float("nan"), reason=message)
    return made


def assert_seen(shown: str) -> None:
    unseen = [char for char in shown if not char.isprintable() or char in "\u034f\u3164\u2800\ufe0f\uffa0\U000e0100"]
    assert not unseen, (shown, unseen)
    shown.encode()


@pytest.mark.parametrize("name", EXITS)
def test_no_deceit_leaves(name: str) -> None:
    for deceit in DECEITS:
        assert_seen(EXITS[name](f"before {deceit} after"))


def test_what_leaves_is_seen_whatever_its_category_is() -> None:
    chars = [next(chr(c) for c in range(sys.maxunicode) if unicodedata.category(chr(c)) == cat) for cat in CATEGORIES]
    for exit_of in EXITS.values():
        assert_seen(exit_of("".join(chars)))


@effort(200)
@given(texts, st.integers(4, 60))
@example("\x1b" * 60, 4)
def test_a_printable_text_is_seen_is_short_and_stays(text: str, most: int) -> None:
    shown = printable(text, most)
    assert_seen(shown)
    assert len(shown) <= most
    assert printable(shown, most) == shown
    assert len(within_bytes(text, most).encode()) <= most


def test_what_prints_stays_as_it_is() -> None:
    for text in ("device w0 is gone", "Gerät ist heiß", "سليم", "設備故障", "fan ✗ 🔥", r"C:\dev", "a  b"):
        assert printable(text, 100) == text


def test_a_huge_text_is_cut_before_it_is_escaped() -> None:
    line = text_log("\x1b" * 10_000_000)
    assert len(line) < 20_000
    assert len(json_log("x" * 10_000_000).encode()) < 16 * 1024
    assert len(traceback_text("line\n" * 1_000_000)) < 200_000


def test_no_codec_is_loaded_to_escape() -> None:
    """Without file descriptors the first text that did not print ended the process: Python could not open the codec."""
    escape = "print(kdp.errors.printable('a\\x1b\\u202e', 20), 'encodings.unicode_escape' in sys.modules)"
    code = f"import sys, kdp.errors; {escape}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a\\x1b\\u202e False\n"
