"""What becomes an Event of the Node, and which pods are told: each change once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conditions import condition

import kdp
from kdp.cluster.event_aggregation import EventTarget
from kdp.deviceplugin.status import ABSENT, ResourceStatus
from kdp.kubelet.podresources import Holder
from kdp.model.devices import Device, Health
from kdp.operations.news import LOST_AFTER, HolderNews, PluginNews, subjects_of
from kdp.supervision.conditions import health_of
from kdp.supervision.health import DeviceHealth, HealthChange, HealthState

GPU = "example.com/gpu"
GONE = Device(id="g1", health=health_of(condition("vanished", "the device is gone")))


def change(before: HealthState | None, after: HealthState, reason: str | None = "XID 79") -> HealthChange:
    health = DeviceHealth(state=after, reason=reason, since=0.0)
    return HealthChange(device=kdp.Device(id="g0"), before=before, health=health, resource=GPU)


def status(state: str = "connected", **more: Any) -> ResourceStatus:
    return ResourceStatus(**{"resource": GPU, "state": state, "reason": None, "devices": 2, "healthy": 2, **more})


class Told:
    """What was told, look by look."""

    def __init__(self) -> None:
        self.news = PluginNews(EventTarget.of_node("node0"))
        self.now = 0.0

    def look(self, *seen: ResourceStatus, rejection: str | None = None, after: float = 2.0) -> list[tuple[str, str]]:
        self.now += after
        found = self.news.looked({each.resource: each for each in seen}, rejection, self.now)
        return [(notice.reason, notice.message) for notice in found]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (HealthState.HEALTHY, HealthState.UNHEALTHY, "DeviceUnhealthy"),
        (None, HealthState.UNHEALTHY, "DeviceUnhealthy"),
        (HealthState.QUARANTINED, HealthState.SUSPECT, "DeviceRecovered"),
        (HealthState.HEALTHY, HealthState.QUARANTINED, "DeviceQuarantined"),
        (HealthState.HEALTHY, HealthState.SUSPECT, None),
        (HealthState.RECOVERING, HealthState.UNHEALTHY, None),
    ],
)
def test_what_the_scheduler_sees_is_told(before: HealthState | None, after: HealthState, reason: str | None) -> None:
    notice = PluginNews(EventTarget.of_node("node0")).changed(change(before, after))
    assert (None if notice is None else notice.reason) == reason
    if notice is not None:
        assert notice.message.startswith(f"{GPU}: device g0 is ")
        assert notice.is_warning == (reason != "DeviceRecovered")


def test_a_kubelet_that_restarts_is_no_news_and_one_that_stays_away_is() -> None:
    told = Told()
    assert told.look(status()) == []
    assert told.look(status("waiting", reason="no kubelet")) == []
    assert told.look(status()) == []
    assert told.look(status("waiting", reason="no kubelet")) == []
    text = f"{GPU}: not registered with the kubelet for 15 s: no kubelet"
    assert told.look(status("waiting", reason="no kubelet"), after=LOST_AFTER) == [("ResourceLost", text)]
    assert told.look(status("waiting", reason="still none")) == []
    assert told.look(status()) == [("ResourceRegained", f"{GPU}: registered with the kubelet again")]


def test_a_node_without_the_hardware_has_lost_nothing() -> None:
    told = Told()
    for _ in range(3):
        assert told.look(status(ABSENT, devices=0, healthy=0), after=LOST_AFTER) == []


def test_the_last_healthy_device_is_told_and_its_return() -> None:
    told = Told()
    assert told.look(status(healthy=0)) == [], "none was healthy before"
    assert told.look(status(healthy=1)) == []
    assert told.look(status(healthy=0)) == [("NoHealthyDevice", f"{GPU}: no healthy device is left, of 2")]
    assert told.look(status(healthy=0)) == []
    assert told.look(status(healthy=2)) == [("DevicesAvailable", f"{GPU}: healthy devices again: 2")]


def test_a_device_that_is_gone_is_told_once() -> None:
    told = Told()
    told.look(status())
    gone = status(healthy=1, vanished=1, listed={"g1": GONE})
    assert told.look(gone) == [("DeviceUnhealthy", f"{GPU}: device g1 is gone")]
    assert told.look(gone) == []
    back = status(listed={"g1": Device(id="g1")})
    assert told.look(back) == [("DeviceRecovered", f"{GPU}: device g1 is back")]


def test_a_device_that_is_scrubbed_beside_one_that_is_gone_was_told_as_gone() -> None:
    told = Told()
    told.look(status())
    scrubbed = Device(id="g2", health=health_of(condition("scrub")))
    sick = Device(id="g3", health=Health.unhealthy("the device is gone"))
    seen = status(healthy=1, vanished=1, listed={each.id: each for each in (GONE, scrubbed, sick)})
    assert told.look(seen) == [("DeviceUnhealthy", f"{GPU}: device g1 is gone")]


def test_a_device_that_two_pods_hold_is_told_and_its_end() -> None:
    told = Told()
    twice = status(doubles={"g0": "ns/a and ns/b"})
    assert told.look(status()) == []
    text = f"{GPU}: device g0 is held by two pods, ns/a and ns/b: delete one of the two"
    assert told.look(twice) == [("DeviceGivenTwice", text)]
    assert told.look(twice) == []
    assert told.look(status()) == [("DeviceGivenOnce", f"{GPU}: device g0 is no longer held by two pods")]


def test_a_device_that_recovered_while_its_plugin_was_away_was_not_told() -> None:
    before, after = Told(), Told()
    before.news.changed(change(HealthState.HEALTHY, HealthState.UNHEALTHY))
    assert before.news.bad == {(GPU, "g0")}
    after.news.recall([*before.news.bad, (GPU, "g1"), (GPU, "g2"), ("example.com/other", "g0")])
    sick = DeviceHealth(state=HealthState.UNHEALTHY, reason="XID 79", since=0.0)
    seen = status(listed={each: Device(id=each) for each in ("g0", "g1", "g2")}, faults={"g1": sick})
    again = [("DeviceRecovered", f"{GPU}: device {each} is healthy again") for each in ("g0", "g2")]
    assert after.look(seen) == again
    assert after.look(seen) == []
    assert after.news.bad == {(GPU, "g1"), ("example.com/other", "g0")}


def test_a_device_that_this_process_has_told_of_is_not_recalled() -> None:
    told = Told()
    told.news.changed(change(None, HealthState.UNHEALTHY))
    told.news.changed(change(HealthState.UNHEALTHY, HealthState.HEALTHY))
    told.news.recall([(GPU, "g0")])
    assert told.look(status(listed={"g0": Device(id="g0")})) == []
    assert not told.news.bad


@pytest.mark.parametrize(
    ("message", "subjects"),
    [
        (f"{GPU}: device g0 is unhealthy: a: b", {(GPU, "g0")}),
        (f"{GPU}: 2 devices are healthy again: g0, g1", {(GPU, "g0"), (GPU, "g1")}),
        (f"{GPU}: no healthy device is left, of 2", {(GPU, "")}),
        ("the configuration is in force again", {("", "")}),
    ],
)
def test_an_event_says_which_devices_it_is_about(message: str, subjects: set[tuple[str, str]]) -> None:
    assert subjects_of(message) == subjects


# -- the pods that hold failed devices ---------------------------------------------------------------------------------

DEVICE = (GPU, "g0")
POD, OTHER = Holder("ns", "a", "main"), Holder("ns", "b", "main")


def test_a_holder_counts_if_the_kubelet_was_asked_after_the_device_failed() -> None:
    news = HolderNews()
    assert news.looked({DEVICE: "XID 79"}, {DEVICE: (OTHER,)}, asked_at=9.0, now=10.0) == []
    assert news.wants_holders(9.0)
    [holding] = news.looked({DEVICE: "XID 79"}, {DEVICE: (POD,)}, asked_at=11.0, now=12.0)
    assert (holding.holder, holding.failure) == (POD, "XID 79")
    assert not news.wants_holders(11.0)
    assert news.looked({DEVICE: "XID 79"}, {DEVICE: (POD,)}, asked_at=13.0, now=14.0) == []


def test_a_holder_is_told_that_its_device_works_again_and_nobody_else() -> None:
    news = HolderNews()
    news.looked({DEVICE: "XID 79"}, {DEVICE: (POD,)}, asked_at=11.0, now=10.0)
    [holding] = news.looked({}, {DEVICE: (POD,)}, asked_at=11.0, now=12.0)
    assert (holding.holder, holding.failure) == (POD, None)
    news.looked({DEVICE: "XID 79"}, {DEVICE: (POD,)}, asked_at=21.0, now=20.0)
    assert news.looked({}, {DEVICE: (OTHER,)}, asked_at=22.0, now=23.0) == []
    assert not news.wants_holders(None)


def test_each_of_two_pods_with_a_failed_device_is_told() -> None:
    news = HolderNews()
    found = news.looked({DEVICE: "XID 79"}, {DEVICE: (POD, OTHER)}, asked_at=11.0, now=10.0)
    assert [holding.holder for holding in found] == [POD, OTHER]
    [holding] = news.looked({}, {DEVICE: (OTHER,)}, asked_at=12.0, now=12.0)
    assert (holding.holder, holding.failure) == (OTHER, None)


def test_the_next_holder_of_a_failed_device_is_told_as_well() -> None:
    news = HolderNews()
    news.looked({DEVICE: "XID 79"}, {DEVICE: (POD,)}, asked_at=11.0, now=10.0)
    assert news.looked({DEVICE: "XID 79"}, {}, asked_at=12.0, now=12.0) == []
    [holding] = news.looked({DEVICE: "XID 79"}, {DEVICE: (OTHER,)}, asked_at=13.0, now=13.0)
    assert holding.holder == OTHER
