"""The status document: each device once, as the process serves it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, cast

import attrs
import pytest
from tests.conditions import condition

import kdp
from kdp.concurrency.history import History
from kdp.daemon.parsers import Address
from kdp.daemon.settings import Settings
from kdp.deviceplugin.manager import Status
from kdp.deviceplugin.status import ResourceStatus
from kdp.deviceplugin.tracking.drift import ResourceView
from kdp.dra.driver import Status as DraStatus
from kdp.dra.plugin import DriverStatus
from kdp.dra.publishing.actions import PublisherStatus
from kdp.dra.publishing.feature_gates import DroppedField
from kdp.kubelet.watch import KubeletState, KubeletView
from kdp.model.devices import Device
from kdp.operations.status import MOST_DEVICES, document
from kdp.operations.status_facts import Facts, ProcessFacts, facts_of
from kdp.supervision.conditions import KINDS, OwnKind, health_of
from kdp.supervision.health import DeviceHealth, HealthState
from kdp.supervision.service import HeldClaim

FACTS = ProcessFacts(mode="device-plugin", node="n1", directories={"cdi": None, "state": "/s"}, started=0.0)

GOOD = Device(id="good", numa_nodes=[1], edits=kdp.ContainerEdits.of_node("/dev/good0"))
SICK = Device(id="sick", unit="card", health=health_of(condition("fan", "fan failed")))
GONE = Device(id="gone", health=health_of(condition("vanished", "the device is gone")))
FAULTS = {
    "sick": DeviceHealth(state=HealthState.UNHEALTHY, reason="fan failed", since=0.0, conditions=SICK.health.conditions)
}


def shown(status: Status | DraStatus | None, more: Facts | None = None, **notes: object) -> dict[str, Any]:
    is_ready = status is not None and status.is_ready
    made = document(FACTS, status, is_ready=is_ready, notes=notes, more=more)
    return cast("dict[str, Any]", json.loads(json.dumps(made.to_json())))


def resource(**more: Any) -> ResourceStatus:
    listed: Mapping[str, Device] = {each.id: each for each in (GOOD, SICK, GONE)}
    given = {"state": "connected", "reason": None, "devices": 3, "healthy": 1, "faults": FAULTS, "listed": listed}
    return ResourceStatus(resource="example.com/w", **{**given, **more})


def test_it_has_the_settings_that_were_given_without_passwords() -> None:
    given = Settings(http=Address("", 8080), state_dir=None, cdi="beside").changed
    assert given == {"cdi": "beside", "http": ":8080", "state-dir": "none"}
    assert Settings().changed == {}
    facts = attrs.evolve(FACTS, settings={**given, "socket": "https://u:p4ssword@h/x"})
    found = document(facts, None, is_ready=False, notes={})
    assert found.settings == {**given, "socket": "https://u:***@h/x"}


def test_it_has_each_device_with_its_health_and_its_pod() -> None:
    held = resource(holders={"good": "default/p (main)"})
    found = shown(Status(resources={"example.com/w": held}, backends=(("W", None),)))
    assert found["ready"] is True
    assert found["directories"] == {"cdi": None, "state": "/s"}
    assert found["started"] == "1970-01-01T00:00:00+00:00"
    assert (found["mode"], found["node"], found["pid"]) == ("device-plugin", "n1", os.getpid())
    assert found["backends"] == [{"class": "W", "reason": None, "measures": None, "links": []}]
    [one] = found["resources"]
    assert (one["name"], one["state"], one["devices"], one["healthy"]) == ("example.com/w", "connected", 3, 1)
    good, sick, gone = one["listed"]
    assert (good["health"], good["state"], good["held_by"]) == ("Healthy", "healthy", "default/p (main)")
    assert good["numa_nodes"] == [1]
    assert (good["nodes"], sick["nodes"]) == (["/dev/good0"], [])
    assert (sick["health"], sick["state"], sick["reason"]) == ("Unhealthy", "unhealthy", "fan failed")
    assert sick["unit"] == "card"
    assert sick["since"] is not None
    assert (gone["health"], gone["state"], gone["reason"]) == ("Unhealthy", "gone", "the device is gone")
    assert [good["kinds"], sick["kinds"], gone["kinds"]] == [[], ["fan"], ["vanished"]]
    assert gone["since"] is not None


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS.keys())
def test_the_table_says_which_devices_are_only_withheld(own: OwnKind) -> None:
    held = Device(id="held", health=health_of(condition(own.name)))
    [one] = shown(Status(resources={"example.com/w": resource(listed={"held": held})}, backends=()))["resources"]
    [listed] = one["listed"]
    assert listed["kinds"] == [own.name]
    assert listed["state"] == ("withheld" if own.is_withheld else "gone" if own.name == "vanished" else "unhealthy")


def test_a_reason_of_a_backend_in_kdps_words_was_taken_for_a_tombstone() -> None:
    sick = Device(id="sick", health=health_of(condition("discover", "the device is gone")))
    faults = {"sick": DeviceHealth(state=HealthState.UNHEALTHY, reason="the device is gone", since=0.0)}
    held = resource(listed={"sick": sick}, faults=faults)
    for each in (held, attrs.evolve(held, faults={})):
        [one] = shown(Status(resources={"example.com/w": each}, backends=()))["resources"]
        assert one["listed"][0]["state"] == "unhealthy"


def test_a_kubelet_that_does_not_say_who_holds_a_device_is_no_free_device() -> None:
    [one] = shown(Status(resources={"example.com/w": resource()}, backends=()))["resources"]
    assert all("held_by" not in device for device in one["listed"])


def test_what_a_server_dropped_and_a_list_that_is_too_large_were_told_to_metrics_only() -> None:
    publication = PublisherStatus(generation=3, dropped=(DroppedField("spec.devices[0].taints", "DRADeviceTaints"),))
    given: dict[str, Any] = {"is_registered": True, "reason": None, "devices": 1, "healthy": 1}
    driver = DriverStatus(driver="w.example.com", publication=publication, **given)
    [one] = shown(DraStatus(drivers={"w.example.com": driver}, backends=()))["resources"]
    dropped = [{"path": "spec.devices[0].taints", "gate": "DRADeviceTaints"}]
    assert one["slices"] == {"generation": 3, "count": 0, "problem": None, "dropped": dropped}
    large = resource(too_large="9 devices can need 8 bytes")
    [one] = shown(Status(resources={"example.com/w": large}, backends=()))["resources"]
    assert one["too_large"] == "9 devices can need 8 bytes"


def test_without_anything_served_it_says_why() -> None:
    found = shown(None, reason="another mode holds the lock", other="is left out")
    assert (found["ready"], found["resources"], found["backends"]) == (False, [], [])
    assert (found["reason"], found["configuration"], found["absent"]) == ("another mode holds the lock", None, None)
    assert "other" not in found


@pytest.mark.thorough
def test_the_list_has_a_bound() -> None:
    many = {str(i): kdp.Device(id=str(i)) for i in range(MOST_DEVICES + 1)}
    [one] = shown(Status(resources={"example.com/w": resource(listed=many, faults={})}, backends=()))["resources"]
    assert len(one["listed"]) == MOST_DEVICES


def test_it_has_the_kubelet_and_since_when_the_kubelet_follows_a_resource() -> None:
    kubelet = KubeletView(KubeletState.LISTENING, (1, 2, 60 * 10**9))
    parts = {"example.com/w": resource(since=0.0)}
    found = shown(Status(resources=parts, backends=(), kubelet=kubelet, kubelet_restarts=2))
    assert found["kubelet"] == {"state": "listening", "since": "1970-01-01T00:01:00+00:00", "restarts": 2}
    assert found["resources"][0]["since"] is not None
    silent = shown(Status(resources={"example.com/w": resource()}, backends=()))
    assert silent["kubelet"] is None
    assert silent["resources"][0]["since"] is None


def test_it_has_what_happened_if_somebody_wanted_to_know() -> None:
    history = History()
    history.add("fault", "example.com/w", "now Unhealthy (fan failed)", ["sick"])
    found = shown(None, facts_of(None, history))
    [event] = found["events"]
    assert event.pop("at").startswith("20")
    assert event == {
        "kind": "fault",
        "subject": "example.com/w",
        "text": "now Unhealthy (fan failed)",
        "devices": ["sick"],
        "more": 0,
        "count": 1,
    }
    assert shown(None, facts_of(None, None))["events"] is None


def test_a_driver_has_its_claims_and_they_hold_the_devices() -> None:
    claims = (
        HeldClaim(name="default/c0", uid="u0", devices=("good",), is_prepared=True),
        HeldClaim(name="default/c1", uid="u1", devices=("good",), is_prepared=False),
        HeldClaim(name="default/c2", uid="u2", devices=("good",), is_prepared=False, is_over=True),
    )
    driver = DriverStatus(
        driver="w.example.com", is_registered=True, reason=None, devices=1, healthy=1, found=(GOOD,), claims=claims
    )
    [one] = shown(DraStatus(drivers={"w.example.com": driver}, backends=()))["resources"]
    assert one["listed"][0]["held_by"] == "claim default/c0, default/c1", "the third has ended"
    assert [(each["name"], each["devices"], each["is_prepared"], each["is_over"]) for each in one["claims"]] == [
        ("default/c0", ["good"], True, False),
        ("default/c1", ["good"], False, False),
        ("default/c2", ["good"], False, True),
    ]


def test_how_the_kubelet_listed_the_devices_was_not_told() -> None:
    view = ResourceView(True, 0, missing=frozenset({"good"}), compared_at=60.0, since=0.0)
    [one] = shown(Status(resources={"example.com/w": resource(view=view)}, backends=(("W", None),)))["resources"]
    told = one["kubelet_list"]
    assert (told["missing"], told["phantom"]) == (["good"], [])
    assert told["since"] < told["at"]
    [one] = shown(Status(resources={"example.com/w": resource()}, backends=(("W", None),)))["resources"]
    assert "kubelet_list" not in one
