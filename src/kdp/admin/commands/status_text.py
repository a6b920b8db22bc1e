"""A status document as text for a terminal.

The commands run in the plugin's container, within its limit of memory. So the table of devices needs no library.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, cast

import click

from ...command.streams import shown
from ..page.words import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...operations.status_document import (
        ClaimStatus,
        ListedDevice,
        RecordedEvent,
        ServedResource,
        SliceStatus,
        StatusDocument,
    )

_EVENTS: Final = 50
_CLAIMS: Final = 50

_HEADS: Final = {
    "id": "ID",
    "health": "HEALTH",
    "state": "STATE",
    "since": "SINCE",
    "held_by": "HELD BY",
    "numa_nodes": "NUMA",
    "unit": "UNIT",
    "reason": "REASON",
}


def status_lines(found: StatusDocument, *, is_terminal: bool) -> Iterator[str]:
    """Return a status document as lines of text. On a terminal, sick devices are red."""
    node = f" on {found.node}" if found.node else ""
    ready = "ready" if found.is_ready else "not ready"
    yield shown(f"kdp {found.version}, process {found.pid}{node}, {found.mode} since {found.started}: {ready}")
    refused = found.configuration
    files = () if found.labels is None else found.labels.files
    notes = [
        found.reason,
        refused and f"the configuration was refused at {refused.since}, an earlier one is used: {refused.reason}",
        found.as_of and f"all else is as it was at {found.as_of}",
        found.state_dir,
        *(found.absent or ()),
        *found.backend_problems,
        *(f"labels, {each.file}: {each.reason}" for each in files if each.reason),
    ]
    yield from (f"  {shown(note)}" for note in notes if note)
    if kubelet := found.kubelet:
        since = f" since {kubelet.since}" if kubelet.since else ""
        count = kubelet.restarts
        restarts = f", {count} restart{'' if count == 1 else 's'} seen" if count else ""
        yield shown(f"  kubelet: {kubelet.state}{since}{restarts}")
    for resource in found.resources:
        reason = f": {resource.reason}" if resource.reason else ""
        yield ""
        yield shown(f"{resource.name}: {_state(resource.state)}{reason}, {counts_of(resource)}")
        yield from (f"  {shown(each)}" for each in resource.troubles)
        yield from map(shown, _slices(resource.slices))
        yield from map(shown, _claims(resource.claims or ()))
        if resource.listed:
            yield from device_lines(resource.listed, is_terminal=is_terminal)
    if found.events:
        yield ""
        yield from _events(found.events[-_EVENTS:])


def counts_of(resource: ServedResource) -> str:
    """Return the number of a resource's devices, for example ``2 devices, 1 healthy``."""
    return f"{resource.devices} device{'' if resource.devices == 1 else 's'}, {resource.healthy} healthy"


def _state(state: str) -> str:
    words = RESOURCES.get(state, state)
    return state if words.lower() == state else f"{state} ({words[:1].lower()}{words[1:]})"


def _slices(slices: SliceStatus | None) -> Iterator[str]:
    """Return the state of a driver's ResourceSlices."""
    if slices is None:
        return
    if slices.generation:
        yield f"  slices: {slices.count} published, generation {slices.generation}"
    if slices.problem:
        yield f"  slices: {slices.problem}"
    for device, gate in slices.withheld.items():
        yield f"  not published: {device}, because the API server has the feature gate {gate} off"
    for field in slices.dropped:
        why = f"its feature gate {field.gate} is off" if field.gate else "it did not say why"
        yield f"  dropped by the API server: {field.path}; {why}"


def _claims(claims: Sequence[ClaimStatus]) -> Iterator[str]:
    for claim in claims[:_CLAIMS]:
        state = "" if claim.is_prepared else ", not prepared yet"
        if claim.is_over:
            state = ", ended, but not released yet"
        yield f"  claim {claim.name}: {', '.join(claim.devices)}{state}"
    if len(claims) > _CLAIMS:
        yield f"  and {len(claims) - _CLAIMS} more claims"


def _events(events: Sequence[RecordedEvent]) -> Iterator[str]:
    yield "last events:"
    for event in events:
        ids = ", ".join(event.devices) + (f" and {event.more} more" if event.more else "")
        times = f"({event.count} times)" if event.count > 1 else ""
        words = (event.at, event.kind, event.subject, ids, event.text, times)
        yield f"  {shown('  '.join(word for word in words if word))}"


def device_lines(listed: Sequence[ListedDevice], *, is_terminal: bool) -> Iterator[str]:
    """Return a table of devices. On a terminal, sick ones are red."""
    columns = {head: [_cell(device, key) for device in listed] for key, head in _HEADS.items()}
    heads = tuple(head for head, cells in columns.items() if any(cells))
    rows = [*zip(*(columns[head] for head in heads), strict=True)]
    for line, device in zip(_aligned([heads, *rows]), [None, *listed], strict=True):
        is_sick = device is not None and not device.is_healthy
        yield click.style(line, fg="red" if is_sick else None, bold=device is None) if is_terminal else line


def _cell(device: ListedDevice, key: str) -> str:
    value: object = getattr(device, key)
    if key == "unit" and value == device.id:
        return ""
    if key == "state" and value in ("healthy", "unhealthy"):  # HEALTH says so
        return ""
    return ",".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value or "")


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Return lines with aligned columns."""
    printed = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printed, strict=True)]
    for row in printed:
        yield "  ".join(itertools.starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
