"""The status document as JSON: one shape, which any version reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kdp.operations.status_document import (
    MOST_ITEMS,
    NOT_TOLD,
    BackendStatus,
    ClaimStatus,
    DroppedSliceField,
    KubeletList,
    KubeletStatus,
    LabelFile,
    LabelStatus,
    ListedDevice,
    MeasurementDeclaration,
    RecordedEvent,
    RejectedConfiguration,
    ServedResource,
    SliceStatus,
    StatusDocument,
    UnitLink,
    to_json,
)
from kdp.operations.status_facts import Moment

AT = Moment("2026-03-04T09:00:00+00:00")

DOCUMENT = StatusDocument(
    version="0.1.0",
    pid=7,
    mode="dra",
    node="n1",
    started=AT,
    directories={"cdi": None, "state": "/s"},
    settings={"cdi": "beside"},
    is_ready=True,
    reason="r",
    as_of=AT,
    configuration=RejectedConfiguration(reason="unknown key 'x'", since=AT),
    absent=("B: no card",),
    labels=LabelStatus(directory="/l", files=(LabelFile(file="f", labels={"a": "b"}, reason="full"),)),
    state_dir="full",
    kubelet=KubeletStatus(state="listening", since=AT, restarts=2),
    backends=(
        BackendStatus(
            class_name="W",
            reason="no driver",
            measures=(MeasurementDeclaration(name="power", unit="watts", help="Power."),),
            links=(UnitLink(units=("a", "b"), weight=2.5),),
        ),
    ),
    resources=(
        ServedResource(
            name="w.example.com",
            state="published",
            since=AT,
            reason="r",
            devices=1,
            healthy=0,
            cdi="c",
            too_large="t",
            rival="v",
            given_twice="g",
            kubelet="k",
            slices=SliceStatus(
                generation=3,
                count=2,
                problem="p",
                withheld={"w1": "G"},
                dropped=(DroppedSliceField(path="s", gate="G"),),
            ),
            kubelet_list=KubeletList(at=AT, since=AT, missing=("m",), phantom=("p",)),
            claims=(ClaimStatus(name="d/c", uid="u", devices=("w0",), is_prepared=True, is_over=True),),
            listed=(
                ListedDevice(
                    id="w0",
                    health="Unhealthy",
                    state="unhealthy",
                    reason="fan",
                    kinds=("fan",),
                    since=AT,
                    numa_nodes=(0, 1),
                    unit="card",
                    nodes=("/dev/w0",),
                    held_by="d/p (main)",
                    measured={"power": 1.5},
                ),
            ),
        ),
    ),
    events=(RecordedEvent(at=AT, kind="fault", subject="s", text="t", devices=("w0",), more=1, count=2),),
)

TEXT = """\
{"kdp": "0.1.0", "pid": 7, "mode": "dra", "node": "n1", "started": "2026-03-04T09:00:00+00:00",
 "directories": {"cdi": null, "state": "/s"}, "settings": {"cdi": "beside"}, "ready": true, "reason": "r",
 "as_of": "2026-03-04T09:00:00+00:00",
 "configuration": {"state": "rejected", "reason": "unknown key 'x'", "since": "2026-03-04T09:00:00+00:00"},
 "absent": ["B: no card"],
 "labels": {"directory": "/l", "files": [{"file": "f", "labels": {"a": "b"}, "reason": "full"}]},
 "state_dir": "full",
 "kubelet": {"state": "listening", "since": "2026-03-04T09:00:00+00:00", "restarts": 2},
 "backends": [{"class": "W", "reason": "no driver",
   "measures": [{"name": "power", "unit": "watts", "help": "Power."}],
   "links": [{"units": ["a", "b"], "weight": 2.5}]}],
 "resources": [{"name": "w.example.com", "state": "published", "since": "2026-03-04T09:00:00+00:00", "reason": "r",
   "devices": 1, "healthy": 0, "cdi": "c", "too_large": "t", "rival": "v", "given_twice": "g", "kubelet": "k",
   "slices": {"generation": 3, "count": 2, "problem": "p", "withheld": {"w1": "G"},
              "dropped": [{"path": "s", "gate": "G"}]},
   "kubelet_list": {"at": "2026-03-04T09:00:00+00:00", "since": "2026-03-04T09:00:00+00:00", "missing": ["m"],
                    "phantom": ["p"]},
   "claims": [{"name": "d/c", "uid": "u", "devices": ["w0"], "is_prepared": true, "is_over": true}],
   "listed": [{"id": "w0", "health": "Unhealthy", "state": "unhealthy", "reason": "fan", "kinds": ["fan"],
               "since": "2026-03-04T09:00:00+00:00", "numa_nodes": [0, 1], "unit": "card", "nodes": ["/dev/w0"],
               "held_by": "d/p (main)", "measured": {"power": 1.5}}]}],
 "events": [{"at": "2026-03-04T09:00:00+00:00", "kind": "fault", "subject": "s", "text": "t", "devices": ["w0"],
             "more": 1, "count": 2}]}
"""
"""The JSON of versions before the declaration. Programs of others read these keys."""

LEAST: dict[str, Any] = {"ready": True, "resources": [{"name": "a/b", "listed": [{"id": "w0", "health": "Healthy"}]}]}


def test_the_keys_are_those_of_earlier_versions_in_their_order() -> None:
    assert json.dumps(DOCUMENT.to_json()) == json.dumps(json.loads(TEXT))


def test_what_is_written_is_read() -> None:
    assert StatusDocument.parse(TEXT) == DOCUMENT


def test_a_free_device_and_an_unknown_holder_differ() -> None:
    free, unknown = (ListedDevice(id="w0", health="Healthy", held_by=each) for each in (None, NOT_TOLD))
    keys = [to_json(each) for each in (free, unknown)]
    assert ["held_by" in each for each in keys] == [True, False]  # type: ignore[operator]
    resources = [{"name": "a/b", "listed": keys}]
    assert StatusDocument.from_json({"ready": True, "resources": resources}).resources[0].listed == (free, unknown)


def test_a_newer_plugin_has_more_keys_and_an_older_one_fewer() -> None:
    newer = json.loads(TEXT)
    newer["new"] = newer["resources"][0]["new"] = newer["resources"][0]["listed"][0]["new"] = {"x": [1]}
    assert StatusDocument.from_json(newer) == DOCUMENT
    older = StatusDocument.from_json(LEAST)
    [resource] = older.resources
    [device] = resource.listed
    assert (older.directories, older.settings, resource.claims, resource.slices) == (None, None, None, None)
    assert (device.is_healthy, device.held_by, device.nodes, device.measured) == (True, NOT_TOLD, None, None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "expected an object, not a list"),
        ({"resources": []}, "it has no key 'ready'"),
        ({"ready": True, "resources": [{}]}, ".resources[0]: it has no key 'name'"),
        ({**LEAST, "ready": 1}, ".ready: expected true or false, not a number"),
        ({**LEAST, "pid": True}, ".pid: expected a whole number, not true or false"),
        ({**LEAST, "kdp": None}, ".kdp: expected a text, not null"),
        ({**LEAST, "started": "soon"}, ".started: expected a time, for example '2026-03-04T11:00:00+00:00'"),
        ({**LEAST, "started": "2026-03-04T11:00:00"}, ".started: expected a time, for example"),
        ({**LEAST, "settings": {"a": []}}, ".settings.a: expected a text, not a list"),
        (
            {**LEAST, "backends": [{"class": "W", "links": [{"units": ["a"], "weight": 1}]}]},
            ".backends[0].links[0].units: expected 2 items, not 1",
        ),
        (
            {"ready": True, "resources": [{"name": "a/b", "listed": [{"id": "w0", "health": {}}]}]},
            ".resources[0].listed[0].health: expected a text, not an object",
        ),
        ({**LEAST, "absent": ["x"] * (MOST_ITEMS + 1)}, f".absent: it has more than {MOST_ITEMS} items"),
    ],
)
def test_an_error_names_the_place(value: object, said: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is compared
        StatusDocument.from_json(value)
    assert str(error.value).startswith(said)


def test_a_blocked_event_loop_is_told_from_other_reasons() -> None:
    reason = "the event loop has not run for 1 s: a hook of the backend blocks it"
    assert StatusDocument.from_json({**LEAST, "reason": reason}).is_blocked
    assert not StatusDocument.from_json({**LEAST, "reason": "no driver"}).is_blocked
