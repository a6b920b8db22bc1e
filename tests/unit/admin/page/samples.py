"""Status documents for the tests of the page, and a page as a browser reads it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

from typing_extensions import override

from kdp.admin.page.view import AskedPlugin
from kdp.operations.status_document import StatusDocument

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</bdi></td></table></main><iframe src=javascript:alert(4)>",
    "a\u202egnp.exe",
    "\x1b[31m\n\x00",
    "&lt;b&gt; {0} {x} %s",
)


def device(name: str = "gpu-0", **more: Any) -> dict[str, Any]:
    """Return a device of a document."""
    healthy = {"health": "Healthy", "state": "healthy", "reason": None, "since": None}
    return {"id": name, "unit": name, "numa_nodes": [], "nodes": [], **healthy, **more}


def sick(name: str = "gpu-1", reason: str = "fan failed", **more: Any) -> dict[str, Any]:
    """Return a device that is unhealthy."""
    state = {"health": "Unhealthy", "state": "unhealthy", "reason": reason, "since": "2026-03-04T11:55:00+00:00"}
    return device(name, **{**state, **more})


def resource(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a resource of a document."""
    healthy = sum(each["health"] == "Healthy" for each in devices)
    found = {"name": "example.com/gpu", "state": "connected", "since": "2026-03-04T11:00:00+00:00", "reason": None}
    return {**found, "devices": len(devices), "healthy": healthy, "listed": list(devices), **more}


def event(kind: str = "fault", **more: Any) -> dict[str, Any]:
    """Return an event of a document."""
    found = {"at": "2026-03-04T11:59:00+00:00", "subject": "example.com/gpu", "text": "", "devices": []}
    return {"kind": kind, **found, "more": 0, "count": 1, **more}


def backend(**more: Any) -> dict[str, Any]:
    """Return a backend of a document."""
    return {"class": "Gpus", "reason": None, "measures": None, "links": [], **more}


def document(*resources: dict[str, Any], **more: Any) -> StatusDocument:
    """Return a document of devices, resources, backends, and events as JSON has them."""
    process = {"kdp": "0.1.0", "pid": 7, "mode": "device-plugin", "node": "worker-7"}
    notes = {"ready": True, "reason": None, "configuration": None, "absent": None}
    rest = {"started": "2026-03-04T09:00:00+00:00", "kubelet": None, "backends": [backend()], "events": None}
    found = {**process, **notes, **rest, "resources": list(resources), **more}
    return StatusDocument.parse(json.dumps(found))


def hostile_document(text: str) -> StatusDocument:
    """Return a document with this text wherever somebody else can choose one."""
    devices = [
        device(text, held_by=text, numa_nodes=[0], measured={"power": 1.0}),
        sick("gpu-1", text, unit=text, numa_nodes=[1]),
    ]
    claims = [{"name": text, "uid": text, "devices": [text], "is_prepared": True, "is_over": False}]
    slices = {"generation": 1, "count": 1, "problem": text, "withheld": {text: text}}
    return document(
        resource(*devices, name=text, state=text, reason=text, cdi=text, claims=claims, slices=slices),
        node=text,
        mode=text,
        reason=text,
        configuration={"state": "rejected", "reason": text, "since": "2026-03-04T11:00:00+00:00"},
        absent=[text],
        kubelet={"state": text, "since": None, "restarts": 1},
        backends=[
            backend(**{"class": text, "reason": text, "links": [{"units": [text, f"{text}2"], "weight": 1.0}]}),
            backend(measures=[{"name": "power", "unit": text, "help": text}]),
        ],
        events=[event(text, subject=text, text=text, devices=[text])],
    )


def asked(status: StatusDocument | None, place: str = "/s/own.sock", **more: Any) -> AskedPlugin:
    """Return a plugin that has told a document at `NOW`."""
    return AskedPlugin(place=place, status=status, at=NOW, **more)


class Parsed(HTMLParser):
    """A page as a browser reads it: the tags, their attributes, and the text outside of scripts and style sheets."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    @property
    def text(self) -> str:
        """The text, as one line."""
        return " ".join(" ".join(self._texts).split())

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "link"):
            self._inside.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self._texts.append(data)
