"""What the kubelet believes of devices, by time."""

from __future__ import annotations

import json

import pytest

from kdp_testkit.dra.drivers import choose_health_service
from kdp_testkit.dra.health import DeviceReport, HealthCache


def _cache(*, new: bool = True) -> HealthCache:
    return HealthCache(says_more=new, has_limit=new)


def test_a_device_that_is_not_reported_in_time_is_unknown() -> None:
    cache = _cache()
    assert cache.report("d", [DeviceReport(pool="p", device="a", health="Healthy", timeout=5)], 100.0) == [("p", "a")]
    assert cache.health("d", "p", "a", 105.0) == ("Healthy", "")
    assert cache.health("d", "p", "a", 105.1) == ("Unknown", "")
    assert cache.report("d", [], 106.0) == [("p", "a")]
    assert cache.report("d", [], 107.0) == []


def test_the_default_timeout_is_30_seconds() -> None:
    cache = _cache()
    cache.report("d", [DeviceReport(pool="p", device="a", health="Healthy", timeout=-3)], 0.0)
    assert [cache.health("d", "p", "a", now)[0] for now in (30.0, 30.1)] == ["Healthy", "Unknown"]


def test_134_knows_neither_timeouts_nor_messages() -> None:
    cache = _cache(new=False)
    told = DeviceReport(pool="p", device="a", health="Unhealthy", timeout=500, message="it burns")
    assert cache.report("d", [told], 0.0) == [("p", "a")]
    assert cache.health("d", "p", "a", 29.0) == ("Unhealthy", "")
    assert cache.health("d", "p", "a", 31.0) == ("Unknown", "")


def test_a_long_message_is_cut_by_bytes() -> None:
    cache = _cache()
    cache.report("d", [DeviceReport(pool="p", device="a", health="Unhealthy", message="ä" * 600)], 0.0)
    _, message = cache.health("d", "p", "a", 0.0)
    assert message == "ä" * 510 + "\N{REPLACEMENT CHARACTER}..."


def test_a_report_again_changes_nothing_and_a_cleared_driver_is_unknown() -> None:
    cache = _cache()
    told = DeviceReport(pool="p", device="a", health="Healthy")
    assert [cache.report("d", [told], now) for now in (0.0, 1.0)] == [[("p", "a")], []]
    cache.clear("d")
    assert cache.health("d", "p", "a", 1.0) == ("Unknown", "")


def test_the_kubelet_prefers_v1_for_health_whatever_the_order() -> None:
    assert choose_health_service(["v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"]) == "v1.DRAResourceHealth"
    assert choose_health_service(["v1.DRAPlugin"]) == ""


@pytest.mark.parametrize("says_more", [False, True])
def test_what_is_known_outlives_the_kubelet_until_its_time_is_over(says_more: bool) -> None:
    """The simulation forgot it with the process; the kubelet has a file of it."""
    cache = HealthCache(says_more=says_more, has_limit=says_more)
    cache.report(
        "d", [DeviceReport(pool="p", device="a", health="Unhealthy", message="it burns", timeout=10.0)], now=100.0
    )
    again = HealthCache(says_more=says_more, has_limit=says_more)
    again.load(cache.to_json(now=103.0, wall=5003.0), now=7.0, wall=5004.0)
    limit = 10.0 if says_more else 30.0
    assert again.health("d", "p", "a", 7.0) == ("Unhealthy", "it burns" if says_more else "")
    assert again.health("d", "p", "a", 3.0 + limit - 0.1)[0] == "Unhealthy"
    assert again.health("d", "p", "a", 3.0 + limit + 0.1)[0] == "Unknown"


def test_a_file_of_the_kubelets_own_is_read() -> None:
    """As 1.37.1 writes it: nanoseconds, and no message where there is none."""
    device = {
        "PoolName": "p",
        "DeviceName": "a",
        "Health": "Healthy",
        "LastUpdated": "2026-01-01T00:00:01.123456789Z",
        "HealthCheckTimeout": 5_000_000_000,
        "Message": "",
    }
    cache = HealthCache(says_more=True, has_limit=True)
    cache.load(json.dumps({"d": {"Devices": {"p/a": device}}}), now=10.0, wall=1767225603.0)
    assert cache.health("d", "p", "a", 13.0) == ("Healthy", "")
    assert cache.health("d", "p", "a", 13.2) == ("Unknown", "")


@pytest.mark.parametrize("text", ["{", '{"d": {"Devices": {"p/a": {}}}}'])
def test_a_file_that_cannot_be_read_counts_as_none(text: str) -> None:
    cache = HealthCache(says_more=True, has_limit=True)
    cache.load(text, now=0.0, wall=0.0)
    assert cache.health("d", "p", "a", 0.0) == ("Unknown", "")
