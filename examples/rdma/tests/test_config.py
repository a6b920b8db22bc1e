"""The files of the two Go plugins: their fields, and what is wrong with one, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import kdp
import kdp.hardware
from kdp.testing import SysfsTree
from kdp_rdma import Rdma
from kdp_rdma.config import Functions, Selectors, VfSelector, functions_of, read

Write = Callable[[Any], Path]

# As the Go plugin's own README has it.
SHARED = """{
  "periodicUpdateInterval": 300,
  "configList": [
    {"resourceName": "hca_shared_devices_a", "resourcePrefix": "example.com", "rdmaHcaMax": 1000, \
"devices": ["ib0", "ib1"]},
    {"resourceName": "hca_shared_devices_b", "rdmaHcaMax": 500,
     "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["ib3", "ib4"], \
"drivers": [], "linkTypes": null}}
  ]
}"""

SRIOV = """{
  "resourceList": [
    {"resourceName": "mlnx_sriov_rdma", "resourcePrefix": "mellanox.com",
     "selectors": [{"vendors": ["15b3"], "devices": ["1018"], "drivers": ["mlx5_core"], "isRdma": true}]},
    {"resourceName": "dpdk", "excludeTopology": true, "deviceType": "netDevice",
     "selectors": {"pfNames": ["eth0#0-3,7", "eth1"], "rootDevices": ["0000:86:00.0"], "pKeys": ["0x8001"],
                   "needVhostNet": true,
                   "acpiIndexes": ["101"], "pciAddresses": ["0000:86:02.0"], "linkTypes": ["ether"]},
     "additionalInfo": {"*": {"token": "x"}}}
  ]
}"""


def test_the_file_of_the_shared_plugin() -> None:
    config = read(SHARED, "config.json", "pool")

    assert config.interval == 300
    assert config.warnings == ()
    first, second = config.pools
    assert (first.resource, first.containers) == ("example.com/hca_shared_devices_a", 1000)
    assert first.selectors == Selectors(if_names=("ib0", "ib1"))
    assert (second.resource, second.containers) == ("rdma/hca_shared_devices_b", 500)
    assert second.selectors == Selectors(vendors=("15b3",), device_ids=("1017",), if_names=("ib3", "ib4"))


def test_the_file_of_the_sriov_plugin() -> None:
    config = read(SRIOV, "config.json", "vf")

    first, second = config.vfs
    assert (first.resource, first.variable) == (
        "mellanox.com/mlnx_sriov_rdma",
        "PCIDEVICE_MELLANOX_COM_MLNX_SRIOV_RDMA",
    )
    assert first.selectors == (VfSelector(vendors=("15b3",), devices=("1018",), drivers=("mlx5_core",), is_rdma=True),)
    assert (second.resource, second.with_numa, second.extra) == ("intel.com/dpdk", False, {"*": {"token": "x"}})
    assert second.selectors == (
        VfSelector(
            pf_names=(Functions("eth0", frozenset({0, 1, 2, 3, 7})), Functions("eth1", None)),
            root_devices=(Functions("0000:86:00.0", None),),
            p_keys=(0x8001,),
            need_vhost_net=True,
            acpi_indexes=("101",),
            pci_addresses=("0000:86:02.0",),
            link_types=("ether",),
        ),
    )


def test_unknown_keys_are_named_with_the_nearest_known_and_change_nothing() -> None:
    config = read(SHARED.replace('"drivers"', '"vendor"').replace('"periodic', '"extra": 1, "PERIODIC'), "f", "pool")

    assert config.pools == read(SHARED, "f", "pool").pools
    assert config.interval == 300
    assert config.warnings == (
        "f: extra: is an unknown key and changes nothing (known are configList, periodicUpdateInterval)",
        (
            "f: configList[1].selectors.vendor: is an unknown key and changes nothing (did you mean 'vendors'? known "
            "are deviceIDs, drivers, ifNames, linkTypes, vendors)"
        ),
    )


POOL = '{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"vendors": ["15b3"]}}'
VF = '{"resourceName": "a", "selectors": {"vendors": ["15b3"]}}'


def pool(old: str, new: str) -> str:
    """Return a file with `POOL` alone, in which one text stands for another."""
    return f'{{"configList": [{POOL.replace(old, new)}]}}'


def vf(old: str, new: str) -> str:
    """Return a file with `VF` alone, in which one text stands for another."""
    return f'{{"resourceList": [{VF.replace(old, new)}]}}'


@pytest.mark.parametrize(
    ("mode", "text", "sentence"),
    [
        ("pool", SHARED[:200], "f: the JSON is cut off at line 5, column 22; give the whole file"),
        (
            "pool",
            '{"configList": [], "configList": []}',
            "f: has the key 'configList' twice, and can be no configuration",
        ),
        ("pool", "[]", 'f: the document: a list must be an object; for example {"configList": [...]}'),
        (
            "pool",
            SRIOV,
            "f: the document: this is a configuration of sriov-network-device-plugin, and mode is pool; set mode to vf",
        ),
        (
            "pool",
            '{"configList": [{"resourceName": "a", "rdmaHcaMax": 1}]}',
            'f: configList[0]: selects nothing; for example "selectors": {"vendors": ["15b3"]}',
        ),
        (
            "pool",
            pool('["15b3"]', '["x"]'),
            'f: configList[0].selectors.vendors[0]: "x" must be a hexadecimal PCI id; for example "15b3"',
        ),
        (
            "pool",
            pool('"a",', '"a", "devices": ["ib0"],'),
            "f: configList[0]: has both devices and selectors; put the names of devices into selectors.ifNames",
        ),
        (
            "vf",
            vf('"vendors": ["15b3"]', '"pfNames": ["eth0#3-1"]'),
            (
                'f: resourceList[0].selectors.pfNames[0]: "eth0#3-1" must be a name, optionally followed by # and '
                'numbers or ranges; for example "eth0#0-3,7"'
            ),
        ),
        (
            "vf",
            vf('"vendors"', '"ddpProfiles": ["x"], "vendors"'),
            (
                "f: resourceList[0].selectors.ddpProfiles: DDP profiles are not supported, only "
                "sriov-network-device-plugin serves "
                "them; remove it"
            ),
        ),
        (
            "vf",
            vf('"vendors"', '"vdpaType": "vhost", "isRdma": true, "vendors"'),
            (
                "f: resourceList[0].selectors: has both isRdma and vdpaType, and a function is used the one way or "
                "the other; remove one"
            ),
        ),
        (
            "vf",
            vf('"vendors"', '"auxTypes": ["sf"], "vendors"'),
            (
                "f: resourceList[0].selectors.auxTypes: is for deviceType auxNetDevice, and this is netDevice; "
                "remove one of them"
            ),
        ),
        (
            "vf",
            vf('"a",', '"a", "deviceType": "accelerator",'),
            (
                'f: resourceList[0].deviceType: "accelerator" is not supported: kdp serves virtual functions and '
                'subfunctions, and sriov-network-device-plugin serves the others; for example "netDevice"'
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_file(mode: Literal["pool", "vf"], text: str, sentence: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        read(text, "f", mode)
    assert str(caught.value) == sentence


def test_ranges() -> None:
    assert functions_of("eth0") == Functions("eth0", None)
    assert functions_of("eth0#0") == Functions("eth0", frozenset({0}))
    assert functions_of("eth0#0, 2-4") == Functions("eth0", frozenset({0, 2, 3, 4}))
    for nonsense in (
        "",
        "#1",
        "eth0#",
        "eth0#a",
        "eth0#1-",
        "eth0#4-2",
        "eth0#1#2",
        "eth0#0-99999",
        f"eth0#{'1' * 5001}",
    ):
        assert functions_of(nonsense) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"slots": 4}, "slots=4: belongs to the mode hca, and mode is pool; remove one of the two"),
        ({"mode": "hca", "slots": 0}, "slots=0: must be a number from 1 to 10000; for example slots=4"),
        ({"pf_names": ["eth0"]}, "pf_names=['eth0']: belongs to the mode vf, and mode is pool; remove one of the two"),
        (
            {"mode": "vf", "pf_names": ["eth0#x"]},
            "pf_names=eth0#x: must be a name, optionally followed by # and a number or a range; for example eth0#0-3",
        ),
        ({"vendors": ["mellanox"]}, "vendors=mellanox: must be a hexadecimal PCI id; for example 15b3"),
        (
            {"resource_prefix": "a.io"},
            "resource_prefix=a.io: is for the names in a file, and there is no config; give resource=a.io/NAME",
        ),
        (
            {"config": Path("c.json"), "vendors": ["15b3"]},
            "vendors=['15b3']: the file c.json says what the resources are; remove one of the two",
        ),
        (
            {"config": Path("/nowhere/c.json")},
            "/nowhere/c.json: cannot be read (No such file or directory); name another file",
        ),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        Rdma(kdp.hardware.Host(tmp_path), **options)
    assert str(caught.value) == sentence


def test_a_number_with_too_many_digits_ended_the_look_that_read_the_file_again(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_config(SHARED)
    backend = Rdma(node.host, config=path)
    write_config(SHARED.replace("300", "9" * 5001))
    assert len(backend.discover()) == 1000
    sentence = "has a number with too many digits, and can be no configuration; the last good content stays in force"
    assert f"{path}: {sentence}" in caplog.messages


def test_a_file_that_changes_is_in_force_and_a_broken_one_changes_nothing(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = write_config(SHARED)
    backend = Rdma(node.host, config=path)
    assert backend.poll_interval == 300
    assert len(backend.discover()) == 1000
    assert backend.resources == ["example.com/hca_shared_devices_a", "rdma/hca_shared_devices_b"]
    assert caplog.messages[-1].startswith(
        "rdma/hca_shared_devices_b: no adapter is selected; there are mlx5_0 (15b3:101b, mlx5_core, ib0, infiniband), "
        "mlx5_1"
    )
    caplog.clear()

    for broken in (SHARED[:100], SRIOV):
        write_config(broken)
        assert len(backend.discover()) == len(backend.discover()) == 1000
        assert [message.endswith("; the last good content stays in force") for message in caplog.messages] == [True]
        caplog.clear()
    path.unlink()
    assert len(backend.discover()) == 1000
    caplog.clear()

    write_config(SHARED.replace('"1017"', '"101B"').replace('["ib3", "ib4"]', '["ib0"]').replace("300", "0"))
    assert len(backend.discover()) == 1500
    assert backend.poll_interval is None
    assert caplog.messages == [f"{path} has changed and is in force"]

    write_config(SHARED.replace('"periodicUpdateInterval": 300,', ""))
    assert len(backend.discover()) == 1000
    assert backend.poll_interval == 30.0


def test_an_adapter_of_two_resources_is_of_the_first_in_hca_mode(
    node: SysfsTree, write_config: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_config(
        {
            "configList": [
                {"resourceName": "first", "rdmaHcaMax": 1, "selectors": {"ifNames": ["ib0"]}},
                {"resourceName": "all", "rdmaHcaMax": 1, "selectors": {"linkTypes": ["infiniband"]}},
            ]
        }
    )
    devices = Rdma(node.host, mode="hca", slots=2, config=path).discover()
    assert [(device.id, device.resource) for device in devices] == [
        ("0c42a10300000001-0", "rdma/first"),
        ("0c42a10300000001-1", "rdma/first"),
        ("0c42a10300000002-0", "rdma/all"),
        ("0c42a10300000002-1", "rdma/all"),
    ]
    assert caplog.messages == ["mlx5_0 is of rdma/first already, so rdma/all does not have it"]
    assert len(Rdma(node.host, config=path).discover()) == 2  # a pool shares


SELECTED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]),
    ({"vendors": ["0x15B3"]}, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]),
    ({"device_ids": ["101c"]}, ["mlx5_3", "mlx5_4"]),
    ({"device_ids": ["101b"], "link_types": ["ether"]}, ["mlx5_2"]),
    ({"link_types": ["infiniband", "ether"], "if_names": ["eth0", "ib1"]}, ["mlx5_1", "mlx5_2"]),
    ({"drivers": ["mlx4_core"]}, []),
    ({"drivers": ["mlx4_core", "mlx5_core"], "if_names": ["ib0"]}, ["mlx5_0"]),
]


def test_selectors(node: SysfsTree) -> None:
    for options, expected in SELECTED:
        devices = Rdma(node.host, mode="hca", **options).discover()
        assert [device.attributes["name"] for device in devices] == expected, options


def test_a_pool_gives_all_its_adapters_and_long_names_fit(node: SysfsTree) -> None:
    name = "a" * 63
    devices = Rdma(node.host, resource=f"example.com/{name}", rdma_hca_max=10_000, link_types=["infiniband"]).discover()
    assert len({device.id for device in devices}) == 10_000
    assert max(len(device.id) for device in devices) == 62
    assert devices[0].numa_nodes == (0, 1)
    variables = ("RDMA_DEVICES", f"RDMA_DEVICES_EXAMPLE_COM_{name.upper()}")
    assert devices[0].edits.env == dict.fromkeys(variables, "mlx5_0,mlx5_1")
    assert len(devices[0].edits.device_nodes) == 5 + 3 + 1


def test_the_last_of_two_resources_of_a_container_named_its_adapters(
    node: SysfsTree, write_config: Callable[[Any], Path]
) -> None:
    """The kubelet merges their variables, so both adapters are named only if the variables have two names."""
    rails = [{"resourceName": f"rail-{i}", "rdmaHcaMax": 1, "selectors": {"ifNames": [f"ib{i}"]}} for i in range(2)]
    backend = Rdma(node.host, config=write_config({"configList": rails}))
    first, second = backend.discover()
    assert {**first.edits.env, **second.edits.env} == {
        "RDMA_DEVICES_RDMA_RAIL_0": "mlx5_0",
        "RDMA_DEVICES_RDMA_RAIL_1": "mlx5_1",
    }
    # The file decides, not what is there: an adapter that comes later changes no name.
    write_config({"configList": rails[:1]})
    (alone,) = backend.discover()
    assert alone.edits.env == {"RDMA_DEVICES_RDMA_RAIL_0": "mlx5_0", "RDMA_DEVICES": "mlx5_0"}
    assert {*alone.edits.env} == {*backend.joined_env}


def test_a_device_node_as_configuration_is_refused() -> None:
    with pytest.raises(
        kdp.ConfigurationError, match=r"cannot be read \(it is a device node, not a regular file\); name another file"
    ):
        Rdma(kdp.hardware.Host(), config=Path("/dev/zero"))
