"""The page's content: one or several status documents for people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, final

import attrs

from ...operations.status_document import NOT_TOLD, StatusDocument
from . import words
from .drawing import Link, drawing, units_of
from .markup import Child, Element, element, foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...operations.status_document import (
        ClaimStatus,
        ListedDevice,
        MeasurementDeclaration,
        RecordedEvent,
        ServedResource,
    )
    from ...operations.status_facts import Moment

    _Measures = Mapping[str, MeasurementDeclaration]

MOST_ROWS: Final = 200
"""Devices of one resource that the page shows; those that are not healthy first. The document has all."""

MOST_CLAIMS: Final = 200

MOST_MEASURED: Final = 8
"""Measurements of a device that the page shows, the first ones that its class declares; `/metrics` has all."""

MOST_AT_ONCE: Final = 25
"""Events that are shown without being asked for."""

_ALL: Final = "in the output of kdp status --format json"


@final
@attrs.frozen(kw_only=True)
class AskedPlugin:
    """A plugin with its status.

    Attributes:
        place: Its socket, or the file with its status.
        status: Its status, the last one if it does not answer now. `None` if it has never answered.
        at: Time of the status. Ages are relative to it.
        problem: Why it does not answer now. Empty if it does.
    """

    place: str
    status: StatusDocument | None
    at: datetime
    problem: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether it answers, and is ready."""
        return self.status is not None and self.status.is_ready and not self.problem


def title_of(plugins: Sequence[AskedPlugin]) -> str:
    """Return the title of the page."""
    if len(plugins) == 1:
        return f"{_readiness(plugins[0])}: devices of {_node(plugins[0])}"
    return f"{_ready_of(plugins)}: devices of {words.count(len(plugins), 'plugin', 'plugins')}"


def content(plugins: Sequence[AskedPlugin], *, is_dated: bool = False) -> Element:
    """Return the page's content: one plugin, or several with an overview in front.

    Args:
        plugins: The plugins.
        is_dated: Whether it has the time of each status, because nothing refreshes it.
    """
    if len(plugins) == 1:
        return element("main", *_plugin(plugins[0], 1, is_dated=is_dated), id="main")
    sections = (
        element(
            "section", *_plugin(each, 2, is_dated=is_dated), class_="plugin", aria_label=f"Devices of {_node(each)}"
        )
        for each in plugins
    )
    return element("main", _overview(plugins), *sections, id="main")


def _overview(plugins: Sequence[AskedPlugin]) -> Element:
    is_ready = bool(plugins) and all(each.is_ready for each in plugins)
    heads = ("Node", "State", "Resources")
    rows = (
        element(
            "tr",
            element("th", foreign(_node(each)), scope="row", role="rowheader", data_label="Node"),
            element("td", _readiness_badge(each), role="cell", data_label="State"),
            element("td", foreign("; ".join(_counts(each.status))), role="cell", data_label="Resources"),
            role="row",
        )
        for each in plugins
    )
    return element(
        "header",
        element(
            "div",
            element("h1", f"Devices of {words.count(len(plugins), 'plugin', 'plugins')}"),
            _badge(_ready_of(plugins), "good" if is_ready else "bad", is_large=True),
            class_="title",
        ),
        element("p", _ready_of(plugins), class_="unseen", role="status"),
        element("div", _table("Plugins", heads, rows), class_="card"),
    )


def _plugin(plugin: AskedPlugin, level: int, *, is_dated: bool) -> Iterable[Element | None]:
    yield _head(plugin, level, is_dated=is_dated)
    status, now = plugin.status, plugin.at
    if plugin.problem:
        shown = "" if status is None else f" What is shown is of {_stamp(now)}."
        text = element("li", "The plugin does not answer: ", foreign(plugin.problem), f".{shown}")
        yield element("ul", text, class_="notes bad")
    if status is None:
        return
    measures = {each.name: each for backend in status.backends for each in backend.measures or ()}
    yield from _notes(status, now)
    for resource in status.resources:
        yield _resource(resource, measures, now, level + 1)
    yield _drawing(status, level + 1)
    yield _events(status.events, now, level + 1)


def _node(plugin: AskedPlugin) -> str:
    if plugin.status is None:
        return plugin.place
    return plugin.status.node or "this node"


def _readiness(plugin: AskedPlugin) -> str:
    if plugin.problem:
        return "Not answering"
    return "Ready" if plugin.is_ready else "Not ready"


def _ready_of(plugins: Sequence[AskedPlugin]) -> str:
    return f"{sum(each.is_ready for each in plugins)} of {len(plugins)} ready"


def _readiness_badge(plugin: AskedPlugin, *, is_large: bool = False) -> Element:
    return _badge(_readiness(plugin), "good" if plugin.is_ready else "bad", is_large=is_large)


def _counts(status: StatusDocument | None) -> Sequence[str]:
    resources = () if status is None else status.resources
    return [f"{each.name}: {each.healthy} of {each.devices} healthy" for each in resources]


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


# -- the process and its kubelet ---------------------------------------------------------------------------------------


def _head(plugin: AskedPlugin, level: int, *, is_dated: bool) -> Element:
    return element(
        "header",
        element(
            "div",
            element(f"h{level}", "Devices of ", foreign(_node(plugin))),
            _readiness_badge(plugin, is_large=True),
            class_="title",
        ),
        # Read aloud when it changes; everything else on the page is looked up.
        element("p", ". ".join([_readiness(plugin), *_counts(plugin.status)]), class_="unseen", role="status"),
        element("dl", *_facts(plugin, has_place=level > 1, is_dated=is_dated), class_="facts"),
    )


def _facts(plugin: AskedPlugin, *, has_place: bool, is_dated: bool) -> Iterable[Element]:
    status, now = plugin.status, plugin.at
    if has_place:
        yield _fact("Asked at", foreign(plugin.place))
    if is_dated:
        yield _fact("As of", element("time", _stamp(now), datetime=now.isoformat()))
    if status is None:
        return
    mode = words.MODES.get(status.mode, status.mode)
    yield _fact("Served by", f"kdp {status.version}, {mode}, process {status.pid}")
    if status.started is not None:
        yield _fact("Running since", _since(status.started, now))
    if (kubelet := status.kubelet) is None:
        return
    restarts = f", seen to restart {words.count(kubelet.restarts, 'time', 'times')}" if kubelet.restarts else ""
    if kubelet.since is None:
        yield _fact("Kubelet", foreign(kubelet.state), restarts)
    else:
        yield _fact("Kubelet", "listening since ", _since(kubelet.since, now), restarts)


def _fact(name: str, *value: Child) -> Element:
    return element("div", element("dt", name), element("dd", *value))


def _since(moment: Moment, now: datetime) -> Element:
    return element("time", f"{words.clock(moment, now)} ({words.age(moment, now)})", datetime=moment)


def _notes(status: StatusDocument, now: datetime) -> Iterable[Element]:
    """Yield the faults that an administrator must read."""
    notes: list[Sequence[Child]] = []
    if status.reason:
        notes.append((foreign(status.reason),))
    if (refused := status.configuration) is not None:
        when = words.clock(refused.since, now)
        text = f"The configuration was refused at {when}, and an earlier one is used: "
        notes.append((text, foreign(refused.reason)))
    notes += [(foreign(each.class_name), ": ", foreign(each.reason)) for each in status.backends if each.reason]
    if notes:
        yield element("ul", *(element("li", *each) for each in notes), class_="notes bad")
    if status.absent:
        yield element("ul", *(element("li", foreign(each)) for each in status.absent), class_="notes")


# -- resources and drivers ---------------------------------------------------------------------------------------------


def _resource(resource: ServedResource, measures: _Measures, now: datetime, level: int) -> Element:
    state = words.RESOURCES.get(resource.state, resource.state)
    since = resource.since
    is_well = resource.reason is None and resource.healthy == resource.devices
    return element(
        "section",
        element(
            "div",
            element(f"h{level}", foreign(resource.name)),
            _badge(f"{resource.healthy} of {resource.devices} healthy", "good" if is_well else "bad"),
            class_="title",
        ),
        element(
            "p",
            state,
            *((" since ", _since(since, now)) if since is not None else ()),
            ".",
            *((" ", element("strong", foreign(resource.reason))) if resource.reason else ()),
        ),
        *_troubles(resource),
        _devices(resource, measures, now),
        *_claims(resource, level + 1),
        class_="card",
        aria_label=resource.name,
    )


def _troubles(resource: ServedResource) -> Iterable[Element]:
    """Yield the faults that leave a resource ready, and the state of a driver's ResourceSlices."""
    troubles = [*resource.troubles]
    if (slices := resource.slices) is not None:
        written = words.count(slices.count, "slice", "slices")
        text = f"{written} published, generation {slices.generation}." if slices.generation else "No slices yet."
        yield element("p", f"ResourceSlices: {text}")
        troubles += [slices.problem] if slices.problem else []
        withheld = slices.withheld.items()
        troubles += [f"{device} is not published: the API server has {gate} off" for device, gate in withheld]
    if troubles:
        yield element("ul", *(element("li", foreign(each)) for each in troubles), class_="notes bad")


def _devices(resource: ServedResource, measures: _Measures, now: datetime) -> Element | None:
    listed = resource.listed
    if not listed:
        return None
    shown: Sequence[ListedDevice] = listed
    if len(listed) > MOST_ROWS:
        shown = sorted(listed, key=lambda each: words.look_of(each.state) == "good")[:MOST_ROWS]
    has_holders = any(each.held_by != NOT_TOLD for each in shown)
    has_numa = any(each.numa_nodes for each in shown)
    has_measured = any(each.measured for each in shown)
    heads = [
        "Device",
        "Health",
        *(["Held by"] if has_holders else []),
        *(["NUMA node"] if has_numa else []),
        *(["Measured"] if has_measured else []),
    ]
    rows = (_row(each, heads, measures, now) for each in shown)
    rest = len(listed) - len(shown)
    return element(
        "div",
        _table(f"Devices of {resource.name}", heads, rows),
        element("p", f"{words.count(rest, 'more device is', 'more devices are')} {_ALL}.") if rest else None,
    )


def _table(label: str, heads: Sequence[str], rows: Iterable[Element]) -> Element:
    # On a narrow screen the rows become blocks, for which a browser forgets that they are a table: so the roles.
    columns = (
        element("th", head, scope="col", role="columnheader", class_=head.partition(" ")[0].lower()) for head in heads
    )
    return element(
        "table",
        element("thead", element("tr", *columns, role="row"), role="rowgroup"),
        element("tbody", *rows, role="rowgroup"),
        role="table",
        aria_label=label,
    )


def _row(device: ListedDevice, heads: Sequence[str], measures: _Measures, now: datetime) -> Element:
    cells = {
        "Health": _health(device, now),
        "Held by": [foreign(device.held_by)] if device.held_by else [_absent("free")],
        "NUMA node": [", ".join(map(str, device.numa_nodes))] if device.numa_nodes else [_absent("not known")],
        "Measured": _measured(device.measured or {}, measures),
    }
    is_part = device.unit not in ("", device.id)
    unit = element("div", "of ", foreign(device.unit), class_="minor") if is_part else None
    return element(
        "tr",
        element("th", foreign(device.id), unit, scope="row", role="rowheader", data_label="Device"),
        *(element("td", *cells[head], role="cell", data_label=head) for head in heads[1:]),
        role="row",
        class_=words.look_of(device.state),
    )


def _health(device: ListedDevice, now: datetime) -> Sequence[Child]:
    state = device.state
    since = element("span", "since ", _since(device.since, now), class_="minor") if device.since else None
    reason = element("div", foreign(device.reason), class_="reason") if device.reason else None
    return [_badge(words.STATES.get(state, state), words.look_of(state)), " ", since, reason]


def _measured(values: Mapping[str, float], measures: _Measures) -> Sequence[Child]:
    if not values:
        return [_absent("nothing")]
    names = [*(name for name in measures if name in values), *(name for name in values if name not in measures)]
    shown = [
        element(
            "li",
            f"{name.replace('_', ' ')} ",
            element("b", words.amount(values[name], measures[name].unit if name in measures else "")),
        )
        for name in names[:MOST_MEASURED]
    ]
    if more := len(names) - len(shown):
        shown.append(element("li", f"and {more} more", class_="minor"))
    return [element("ul", *shown, class_="measures")]


def _claim_badge(claim: ClaimStatus) -> Element:
    if claim.is_over:
        return _badge("Ended, not released", "doubt")
    return _badge("Prepared", "good") if claim.is_prepared else _badge("Being prepared", "doubt")


def _claims(resource: ServedResource, level: int) -> Iterable[Element]:
    claims = resource.claims
    if claims is None:
        return
    yield element(f"h{level}", "Claims")
    if not claims:
        yield element("p", "No claim has devices of this driver.")
        return
    heads = ("Claim", "State", "Devices")
    rows = (
        element(
            "tr",
            element("th", foreign(each.name), scope="row", role="rowheader", data_label="Claim"),
            element(
                "td",
                _claim_badge(each),
                role="cell",
                data_label="State",
            ),
            element("td", foreign(", ".join(each.devices)), role="cell", data_label="Devices"),
            role="row",
        )
        for each in claims[:MOST_CLAIMS]
    )
    yield _table(f"Claims of {resource.name}", heads, rows)
    if (rest := len(claims) - MOST_CLAIMS) > 0:
        yield element("p", f"{words.count(rest, 'more claim is', 'more claims are')} {_ALL}.")


# -- the drawing, and what has happened --------------------------------------------------------------------------------


def _drawing(status: StatusDocument, level: int) -> Element | None:
    devices = [device for resource in status.resources for device in resource.listed]
    links = [Link(*each.units, each.weight) for backend in status.backends for each in backend.links]
    drawn = drawing(units_of(devices), links)
    if drawn is None:
        return None
    weights = sorted({link.weight for link in links if link.weight > 0})
    told = ["Filled: in use. Hollow: free. A cross: unhealthy."]
    if len(weights) > 1:
        told.append(f"A thicker line is a stronger link; the weights are {weights[0]:g} to {weights[-1]:g}.")
    return element(
        "section",
        element(f"h{level}", "Units"),
        element("figure", drawn, element("figcaption", " ".join(told))),
        class_="card",
        aria_label="Units, NUMA nodes, and links",
    )


def _events(events: Sequence[RecordedEvent] | None, now: datetime, level: int) -> Element | None:
    if events is None:
        return None
    newest = [_event(each, now) for each in reversed(events)]
    earlier = newest[MOST_AT_ONCE:]
    return element(
        "section",
        element(f"h{level}", "Events"),
        element("p", "Times are in UTC. The newest event comes first.", class_="minor"),
        element("ol", *newest[:MOST_AT_ONCE], class_="events") if newest else element("p", "Nothing has happened yet."),
        element(
            "details",
            element("summary", words.count(len(earlier), "earlier event", "earlier events")),
            element("ol", *earlier, class_="events"),
        )
        if earlier
        else None,
        class_="card",
        aria_label="Events",
    )


def _event(event: RecordedEvent, now: datetime) -> Element:
    name, look = words.EVENTS.get(event.kind, (event.kind, "plain"))
    ids = ", ".join(event.devices) + (f", and {event.more} more" if event.more else "")
    times = f"{event.count} times, the last one then" if event.count > 1 else ""
    return element(
        "li",
        element("time", words.clock(event.at, now), datetime=event.at),
        _badge(name, look),
        element(
            "div",
            element("span", foreign(event.subject), " ", class_="minor") if event.subject else None,
            element("b", foreign(ids), " ") if ids else None,
            foreign(event.text) if event.text else None,
            element("span", f" ({times})", class_="minor") if times else None,
        ),
    )


def _badge(text: str, look: str, *, is_large: bool = False) -> Element:
    return element("span", text, class_=f"badge {look}{' large' if is_large else ''}")


def _absent(text: str) -> Element:
    return element("span", text, class_="minor")
