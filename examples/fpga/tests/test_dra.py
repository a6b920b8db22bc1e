"""The same class as a DRA driver: what claims can select."""

from __future__ import annotations

from typing import Any

import pytest

import kdp
from kdp.dra.claims.cdi_specs import check_edits
from kdp.dra.claims.parameters import check_declared, read_parameters
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp.dra.standard_attributes import standard_attributes
from kdp_fpga import Fpga
from kdp_fpga.programming import FpgaConfig
from kdp_fpga.recorded import NODE
from kdp_testkit.pytest_plugin import NodeFrom


def _published(backend: Fpga) -> dict[str, dict[str, Any]]:
    devices = backend.discover()
    for device in devices:
        check_edits(device.edits)
    slices = pool_slices(
        devices,
        pool=Pool.of_node("fpga.example.com", "node-0"),
        limits=Limits.of("v1.34.9"),
        standard={device.id: standard_attributes(device, backend.host) for device in devices},
    )
    return {device["name"]: device["attributes"] for each in slices for device in each.body["devices"]}


def test_a_region_tells_its_function(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="region", annotation=False, programmer="/opt/programmer")

    both, one = _published(backend).values()

    assert {name: both[name] for name in ("ports", "interface", "accelerator")} == {
        "ports": {"int": 2},
        "interface": {"string": "9926ab6d6c925a68aabca7d84c545738"},
        "accelerator": {"string": "d8424dc4a4a3c413f89e433683f9040b"},
    }
    assert one["accelerator"]["string"].startswith("f7d")
    assert one["resource.kubernetes.io/pciBusID"] == {"string": "0000:81:00.0"}
    assert "resource.kubernetes.io/pcieRoot" in one


def test_the_annotation_of_a_region_is_refused_with_what_to_do(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="region")

    with pytest.raises(kdp.InvalidValueError, match=r"^annotation 'com\.intel\.fpga\.mode': .*; leave it out$"):
        _published(backend)


FUNCTION = "d8424dc4a4a3c413f89e433683f9040b"
OTHER = "11112222333344445555666677778888"


def _allocated(backend: Fpga, function: str | None, **more: Any) -> kdp.ContainerEdits:
    config = None if function is None else FpgaConfig(function=function)
    devices = tuple(backend.discover())
    return backend.allocate(
        kdp.Allocation(resource="fpga.intel.com/region", devices=devices, deadline=0, config=config, **more)
    )


def test_a_function_is_a_parameter_that_the_programmer_is_told(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="region", annotation=False, programmer="/opt/programmer")

    edits = _allocated(backend, "11112222-3333-4444-5555-666677778888")

    region = "9926ab6d6c925a68aabca7d84c545738"
    assert edits.env["FPGA_REGION_1"] == region
    assert (edits.env["FPGA_AFU_1"], edits.env["FPGA_AFU_2"]) == (OTHER, OTHER)
    assert [hook.path for hook in edits.hooks] == ["/opt/programmer"]
    assert "FPGA_AFU_1" not in _allocated(backend, None).env
    assert "FPGA_AFU_1" not in _allocated(backend, OTHER, admin_access=True).env


def test_a_board_that_had_the_function_at_the_last_look_was_not_programmed(node_from: NodeFrom) -> None:
    """The hook of another claim may have programmed it since."""
    backend = Fpga(node_from(NODE).host, mode="region", annotation=False, programmer="/opt/programmer")
    first, *_ = backend.discover()
    assert first.attributes["accelerator"] == FUNCTION
    given = kdp.Allocation(resource="r", devices=(first,), deadline=0, config=FpgaConfig(function=FUNCTION))

    assert backend.allocate(given).env["FPGA_AFU_1"] == FUNCTION


def test_a_card_of_amd_in_a_claim_with_a_function_was_a_key_error(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="region", annotation=False, programmer="/opt/programmer")
    card = kdp.Device(id="0000:65:00.1", resource="amd.com/shell", attributes={"shell": "shell"})
    given = kdp.Allocation(resource="r", devices=(card,), deadline=0, config=FpgaConfig(function=FUNCTION))

    with pytest.raises(kdp.AllocationError, match=r"0000:65:00\.1 has no region that could be programmed; select"):
        backend.allocate(given)


def test_without_a_programmer_a_board_must_have_the_function(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="region", annotation=False)
    first, *_ = backend.discover()
    given = kdp.Allocation(resource="r", devices=(first,), deadline=0, config=FpgaConfig(function=FUNCTION))

    assert backend.allocate(given).env == {}
    with pytest.raises(
        kdp.AllocationError, match=r"^function 1111.*: .* has d84.*run the plugin with programmer=PATH$"
    ):
        _allocated(backend, OTHER)


def test_the_advice_in_regiondevel_was_an_option_that_this_mode_refuses(node_from: NodeFrom) -> None:
    backend = Fpga(node_from(NODE).host, mode="regiondevel", annotation=False)
    with pytest.raises(kdp.AllocationError, match=r"run the plugin with mode=region and programmer=PATH$"):
        _allocated(backend, OTHER)


def test_a_function_that_is_no_id_is_told_with_its_field() -> None:
    check_declared(FpgaConfig)
    parameters = {"apiVersion": "fpga.example.com/v1", "kind": "FpgaConfig", "function": "nlb0"}
    entry = {"source": "FromClaim", "opaque": {"driver": "fpga.example.com", "parameters": parameters}}
    with pytest.raises(kdp.KdpError, match=r"^config\[0\].*function 'nlb0': must be the id of an accelerator"):
        read_parameters([entry], driver="fpga.example.com", declared=FpgaConfig)
