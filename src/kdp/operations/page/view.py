"""The page's content, made of the status document: it says what the document says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from . import words
from .drawing import Link, drawing, units_of
from .markup import Child, Element, element, foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

MOST_ROWS: Final = 200
"""Devices of one resource that the page shows; those that are not healthy first. The document has all."""

MOST_CLAIMS: Final = 200

MOST_MEASURED: Final = 8
"""Measurements of a device that the page shows, the first ones that its class declares; `/metrics` has all."""

MOST_AT_ONCE: Final = 25
"""Events that are shown without being asked for."""

_Document = Mapping[str, Any]


def title_of(document: _Document) -> str:
    """Return what the browser calls the page."""
    return f"{'Ready' if document['ready'] else 'Not ready'}: devices of {_place(document)}"


def content(document: _Document, now: datetime) -> Element:
    """Return the page's content.

    Args:
        document: The status document.
        now: The time that ages are told of.
    """
    measures = {each["name"]: each for backend in document["backends"] for each in backend["measures"] or ()}
    return element(
        "main",
        _head(document, now),
        *_notes(document, now),
        *(_resource(each, measures, now) for each in document["resources"]),
        _drawing(document),
        _events(document["events"], now),
        id="main",
    )


def _place(document: _Document) -> str:
    return document["node"] or "this node"


# -- the process and its kubelet ---------------------------------------------------------------------------------------


def _head(document: _Document, now: datetime) -> Element:
    is_ready = document["ready"]
    return element(
        "header",
        element(
            "div",
            element("h1", "Devices of ", foreign(_place(document))),
            _badge("Ready" if is_ready else "Not ready", "good" if is_ready else "bad", is_large=True),
            class_="title",
        ),
        # Read aloud when it changes; everything else on the page is looked up.
        element("p", _spoken(document), class_="unseen", role="status"),
        element("dl", *_facts(document, now), class_="facts"),
    )


def _spoken(document: _Document) -> str:
    parts = [f"{each['name']}: {each['healthy']} of {each['devices']} healthy" for each in document["resources"]]
    return ". ".join(["Ready" if document["ready"] else "Not ready", *parts])


def _facts(document: _Document, now: datetime) -> Iterable[Element]:
    mode = words.MODES.get(document["mode"], document["mode"])
    yield _fact("Served by", f"kdp {document['kdp']}, {mode}, process {document['pid']}")
    yield _fact("Running since", _since(document["started"], now))
    if (kubelet := document["kubelet"]) is None:
        return
    restarts = f", seen to restart {words.count(kubelet['restarts'], 'time', 'times')}" if kubelet["restarts"] else ""
    if kubelet["since"] is None:
        yield _fact("Kubelet", foreign(kubelet["state"]), restarts)
    else:
        yield _fact("Kubelet", "listening since ", _since(kubelet["since"], now), restarts)


def _fact(name: str, *value: Child) -> Element:
    return element("div", element("dt", name), element("dd", *value))


def _since(moment: str, now: datetime) -> Element:
    return element("time", f"{words.clock(moment, now)} ({words.age(moment, now)})", datetime=moment)


def _notes(document: _Document, now: datetime) -> Iterable[Element]:
    """Yield what an administrator must read."""
    notes: list[Sequence[Child]] = []
    if document["reason"]:
        notes.append((foreign(document["reason"]),))
    if (refused := document["configuration"]) is not None:
        when = words.clock(refused["since"], now)
        text = f"The configuration was refused at {when}, and an earlier one is used: "
        notes.append((text, foreign(refused["reason"])))
    notes += [
        (foreign(each["class"]), ": ", foreign(each["reason"])) for each in document["backends"] if each["reason"]
    ]
    if notes:
        yield element("ul", *(element("li", *each) for each in notes), class_="notes bad")
    if absent := document["absent"]:
        yield element("ul", *(element("li", foreign(each)) for each in absent), class_="notes")


# -- resources and drivers ---------------------------------------------------------------------------------------------


def _resource(resource: _Document, measures: Mapping[str, _Document], now: datetime) -> Element:
    state = words.RESOURCES.get(resource["state"], resource["state"])
    since = resource["since"]
    is_well = resource["reason"] is None and resource["healthy"] == resource["devices"]
    return element(
        "section",
        element(
            "div",
            element("h2", foreign(resource["name"])),
            _badge(f"{resource['healthy']} of {resource['devices']} healthy", "good" if is_well else "bad"),
            class_="title",
        ),
        element(
            "p",
            state,
            *((" since ", _since(since, now)) if since is not None else ()),
            ".",
            *((" ", element("strong", foreign(resource["reason"]))) if resource["reason"] else ()),
        ),
        *_troubles(resource),
        _devices(resource, measures, now),
        *_claims(resource),
        class_="card",
        aria_label=resource["name"],
    )


def _troubles(resource: _Document) -> Iterable[Element]:
    """Yield what is wrong although the resource is ready, and what the API server has of a driver's devices."""
    troubles = [
        resource[name] for name in ("cdi", "too_large", "rival", "given_twice", "kubelet") if resource.get(name)
    ]
    if (slices := resource.get("slices")) is not None:
        written = words.count(slices["count"], "slice", "slices")
        text = f"{written} published, generation {slices['generation']}." if slices["generation"] else "No slices yet."
        yield element("p", f"ResourceSlices: {text}")
        troubles += [slices["problem"]] if slices["problem"] else []
        withheld = slices.get("withheld", {}).items()
        troubles += [f"{device} is not published: the API server has {gate} off" for device, gate in withheld]
    if troubles:
        yield element("ul", *(element("li", foreign(each)) for each in troubles), class_="notes bad")


def _devices(resource: _Document, measures: Mapping[str, _Document], now: datetime) -> Element | None:
    listed: Sequence[_Document] = resource["listed"]
    if not listed:
        return None
    shown = listed
    if len(listed) > MOST_ROWS:
        shown = sorted(listed, key=lambda each: words.look_of(each["state"]) == "good")[:MOST_ROWS]
    has_holders = any("held_by" in each for each in shown)
    has_numa = any(each["numa_nodes"] for each in shown)
    has_measured = any(each.get("measured") for each in shown)
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
        _table(f"Devices of {resource['name']}", heads, rows),
        element("p", f"{words.count(rest, 'more device is', 'more devices are')} in /status.json.") if rest else None,
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


def _row(device: _Document, heads: Sequence[str], measures: Mapping[str, _Document], now: datetime) -> Element:
    cells = {
        "Health": _health(device, now),
        "Held by": [foreign(device["held_by"])] if device.get("held_by") else [_absent("free")],
        "NUMA node": [", ".join(map(str, device["numa_nodes"]))] if device["numa_nodes"] else [_absent("not known")],
        "Measured": _measured(device.get("measured") or {}, measures),
    }
    unit = element("div", "of ", foreign(device["unit"]), class_="minor") if device["unit"] != device["id"] else None
    return element(
        "tr",
        element("th", foreign(device["id"]), unit, scope="row", role="rowheader", data_label="Device"),
        *(element("td", *cells[head], role="cell", data_label=head) for head in heads[1:]),
        role="row",
        class_=words.look_of(device["state"]),
    )


def _health(device: _Document, now: datetime) -> Sequence[Child]:
    state: str = device["state"]
    since = element("span", "since ", _since(device["since"], now), class_="minor") if device["since"] else None
    reason = element("div", foreign(device["reason"]), class_="reason") if device["reason"] else None
    return [_badge(words.STATES.get(state, state), words.look_of(state)), " ", since, reason]


def _measured(values: Mapping[str, float], measures: Mapping[str, _Document]) -> Sequence[Child]:
    if not values:
        return [_absent("nothing")]
    names = [*(name for name in measures if name in values), *(name for name in values if name not in measures)]
    shown = [
        element(
            "li",
            f"{name.replace('_', ' ')} ",
            element("b", words.amount(values[name], measures[name]["unit"] if name in measures else "")),
        )
        for name in names[:MOST_MEASURED]
    ]
    if more := len(names) - len(shown):
        shown.append(element("li", f"and {more} more", class_="minor"))
    return [element("ul", *shown, class_="measures")]


def _claim_badge(claim: _Document) -> Element:
    if claim["is_over"]:
        return _badge("Ended, not released", "doubt")
    return _badge("Prepared", "good") if claim["is_prepared"] else _badge("Being prepared", "doubt")


def _claims(resource: _Document) -> Iterable[Element]:
    claims: Sequence[_Document] | None = resource.get("claims")
    if claims is None:
        return
    yield element("h3", "Claims")
    if not claims:
        yield element("p", "No claim has devices of this driver.")
        return
    heads = ("Claim", "State", "Devices")
    rows = (
        element(
            "tr",
            element("th", foreign(each["name"]), scope="row", role="rowheader", data_label="Claim"),
            element(
                "td",
                _claim_badge(each),
                role="cell",
                data_label="State",
            ),
            element("td", foreign(", ".join(each["devices"])), role="cell", data_label="Devices"),
            role="row",
        )
        for each in claims[:MOST_CLAIMS]
    )
    yield _table(f"Claims of {resource['name']}", heads, rows)
    if (rest := len(claims) - MOST_CLAIMS) > 0:
        yield element("p", f"{words.count(rest, 'more claim is', 'more claims are')} in /status.json.")


# -- the drawing, and what has happened --------------------------------------------------------------------------------


def _drawing(document: _Document) -> Element | None:
    devices = [device for resource in document["resources"] for device in resource["listed"]]
    links = [
        Link(each["units"][0], each["units"][1], each["weight"])
        for backend in document["backends"]
        for each in backend["links"]
    ]
    drawn = drawing(units_of(devices), links)
    if drawn is None:
        return None
    weights = sorted({link.weight for link in links if link.weight > 0})
    told = ["Filled: in use. Hollow: free. A cross: unhealthy."]
    if len(weights) > 1:
        told.append(f"A thicker line is a stronger link; the weights are {weights[0]:g} to {weights[-1]:g}.")
    return element(
        "section",
        element("h2", "Units"),
        element("figure", drawn, element("figcaption", " ".join(told))),
        class_="card",
        aria_label="Units, NUMA nodes, and links",
    )


def _events(events: Sequence[_Document] | None, now: datetime) -> Element | None:
    if events is None:
        return None
    newest = [_event(each, now) for each in reversed(events)]
    earlier = newest[MOST_AT_ONCE:]
    return element(
        "section",
        element("h2", "Events"),
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


def _event(event: _Document, now: datetime) -> Element:
    name, look = words.EVENTS.get(event["kind"], (event["kind"], "plain"))
    ids = ", ".join(event["devices"]) + (f", and {event['more']} more" if event["more"] else "")
    times = f"{event['count']} times, the last one then" if event["count"] > 1 else ""
    return element(
        "li",
        element("time", words.clock(event["at"], now), datetime=event["at"]),
        _badge(name, look),
        element(
            "div",
            element("span", foreign(event["subject"]), " ", class_="minor") if event["subject"] else None,
            element("b", foreign(ids), " ") if ids else None,
            foreign(event["text"]) if event["text"] else None,
            element("span", f" ({times})", class_="minor") if times else None,
        ),
    )


def _badge(text: str, look: str, *, is_large: bool = False) -> Element:
    return element("span", text, class_=f"badge {look}{' large' if is_large else ''}")


def _absent(text: str) -> Element:
    return element("span", text, class_="minor")
