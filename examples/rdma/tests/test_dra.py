"""The same class as a DRA driver: what claims can select, and shares of an adapter."""

from __future__ import annotations

from typing import Any

import pytest

import kdp
from kdp.dra.claims.cdi_specs import check_edits
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp.dra.standard_attributes import standard_attributes
from kdp.testing import SysfsTree
from kdp_rdma import Rdma


def _published(backend: Rdma) -> dict[str, dict[str, Any]]:
    devices = backend.discover()
    for device in devices:
        check_edits(device.edits)
    slices = pool_slices(
        devices,
        pool=Pool.of_node("rdma.example.com", "node-0"),
        limits=Limits.of("v1.34.9"),
        standard={device.id: standard_attributes(device, backend.host) for device in devices},
    )
    return {device["name"]: device for each in slices for device in each.body.get("devices", ())}


def test_an_adapter_has_what_claims_select_by(node: SysfsTree) -> None:
    first, second, third, *_ = _published(Rdma(node.host, mode="hca")).values()

    told = first["attributes"]
    assert (told["linkLayer"], told["speed"], told["netdev"]) == (
        {"string": "InfiniBand"},
        {"int": 100},
        {"string": "ib0"},
    )
    assert told["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:3b"}
    assert told["resource.kubernetes.io/pciBusID"] == {"string": "0000:3b:00.0"}
    assert second["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert third["attributes"]["linkLayer"] == {"string": "Ethernet"}
    assert first["capacity"] == {"bandwidth": {"value": "100G"}}
    assert "allowMultipleAllocations" not in first


def test_a_shared_adapter_gives_whole_gigabits(node: SysfsTree) -> None:
    first, *_ = _published(Rdma(node.host, mode="hca", shared=True)).values()

    assert first["allowMultipleAllocations"] is True
    assert first["capacity"]["bandwidth"] == {
        "value": "100G",
        "requestPolicy": {"default": "1G", "validRange": {"min": "1G", "step": "1G"}},
    }


def test_shares_and_slots_contradict_one_another(node: SysfsTree) -> None:
    with pytest.raises(
        kdp.ConfigurationError, match=r"^shared: is for mode=hca without slots, and here are mode=hca, slots=4"
    ):
        Rdma(node.host, mode="hca", slots=4, shared=True)


def _claimed(backend: Rdma, count: int = 1, *, claim: bool = True) -> kdp.Allocation:
    devices = tuple(backend.discover())[:count]
    names = kdp.Claim(namespace="default", name="c", uid="u") if claim else None
    given = kdp.Allocation(resource="rdma/x", devices=devices, deadline=0, claim=names)
    backend.allocate(given)
    return given


def test_a_claim_is_told_of_its_adapters_interface(node: SysfsTree) -> None:
    node.address("ib0", "192.0.2.5/24")
    node.address("ib0", "2001:db8::5/64")
    given = _claimed(Rdma(node.host, mode="hca"))

    assert given.network == {
        given.ids[0]: kdp.NetworkData(
            interface_name="ib0", ips=["192.0.2.5/24", "2001:db8::5/64"], hardware_address="0c:42:a1:00:00:01"
        )
    }


def test_a_pool_and_a_device_plugin_tell_nothing_of_interfaces(node: SysfsTree) -> None:
    assert _claimed(Rdma(node.host, mode="pool")).network == {}
    assert _claimed(Rdma(node.host, mode="hca"), claim=False).network == {}
