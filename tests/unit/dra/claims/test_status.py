from __future__ import annotations

from typing import Any

import attrs
import pytest

from kdp.dra.claims.checkpoint import Use
from kdp.dra.claims.status import with_ready

from .claim_objects import DRIVER, claim, claim_object, result

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:09Z"
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Prepared",
    "message": "the device is prepared for the claim",
    "lastTransitionTime": NOW,
}
W0 = Use(request="r", pool="node0", name="w0", device_id="w0")
FOREIGN = {
    "driver": "other.example.com",
    "pool": "p",
    "device": "x",
    "conditions": [{"type": "Ready", "status": "False"}],
}


def entries(item: dict[str, Any] | None) -> Any:
    assert item is not None
    return item["status"]["devices"]


def test_each_device_is_ready_once_and_others_stay() -> None:
    item = claim_object(
        claim(), [result("w0"), result("w1", share="s"), result("x", driver="other.example.com", pool="p")]
    )
    item["status"]["devices"] = [FOREIGN]
    item["status"]["reservedFor"] = [{"name": "pod"}]
    again = Use(request="other", pool="node0", name="w0", device_id="w0")
    w1 = Use(request="r", pool="node0", name="w1", device_id="w1", share_id="s")
    new = with_ready(item, DRIVER, [W0, again, w1], now=NOW)
    assert entries(new) == [
        FOREIGN,
        {"driver": DRIVER, "pool": "node0", "device": "w0", "conditions": [READY]},
        {"driver": DRIVER, "pool": "node0", "device": "w1", "shareID": "s", "conditions": [READY]},
    ]
    assert new is not None
    assert new["status"]["reservedFor"] == [{"name": "pod"}]
    assert item["status"]["devices"] == [FOREIGN], "what was read stays as it is"
    assert with_ready(new, DRIVER, [W0, w1], now=LATER) is None


def test_what_the_vendor_wrote_of_its_device_stays() -> None:
    item = claim_object(claim(), [result("w0")])
    linked = {"type": "Linked", "status": "True"}
    mine = {"driver": DRIVER, "pool": "node0", "device": "w0", "networkData": {"interfaceName": "eth7"}}
    item["status"]["devices"] = [{**mine, "conditions": [linked, {"type": "Ready", "status": "False"}]}]
    assert entries(with_ready(item, DRIVER, [W0], now=NOW)) == [{**mine, "conditions": [linked, READY]}]


@pytest.mark.parametrize("results", [None, [result("w0", share="s")]])
def test_a_device_that_is_not_allocated_is_not_told(results: Any) -> None:
    assert with_ready(claim_object(claim(), results), DRIVER, [W0], now=NOW) is None


def test_what_the_backend_knows_of_an_interface_is_told_and_kept_new() -> None:
    item = claim_object(claim(), [result("w0"), result("w1", share="s")])
    network = {"interfaceName": "eth1", "ips": ["192.0.2.5/24"], "hardwareAddress": "52:54:00:12:34:56"}
    eth1 = attrs.evolve(W0, network=network)
    w1 = Use(request="r", pool="node0", name="w1", device_id="w1", share_id="s", network={"interfaceName": "eth2"})
    new = with_ready(item, DRIVER, [eth1, w1], now=NOW)
    assert [each["networkData"] for each in entries(new)] == [network, {"interfaceName": "eth2"}]
    assert new is not None
    assert with_ready(new, DRIVER, [eth1, w1], now=LATER) is None
    assert with_ready(new, DRIVER, [W0], now=LATER) is None, "who knows nothing takes nothing away"
    moved = attrs.evolve(W0, network={"interfaceName": "net1"})
    [first, _] = entries(with_ready(new, DRIVER, [moved], now=LATER))
    assert first == {
        "driver": DRIVER,
        "pool": "node0",
        "device": "w0",
        "conditions": [READY],
        "networkData": {"interfaceName": "net1"},
    }
