"""A node without a device: ready or not, as ``--when-no-devices`` says, unless a driver is missing."""

from __future__ import annotations

import pytest

from .test_process import RESOURCE, Start, program

NO_HARDWARE = """
def open(self):
    raise kdp.NoHardware("no widget on the bus")
"""
NO_DRIVER = """
def open(self):
    raise kdp.NotReady("the driver is not loaded")
"""
NO_DEVICE = """
def discover(self):
    return []
"""


@pytest.mark.parametrize(
    ("more", "says"), [(NO_HARDWARE, "W has no hardware here"), (NO_DEVICE, "connected to the kubelet")]
)
async def test_a_node_without_hardware_is_ready_unless_told_otherwise(start: Start, more: str, says: str) -> None:
    async with start(program(more), "W", "--http", "127.0.0.1:0") as plugin:
        await plugin.says(says)
        body = await plugin.until_readyz(200)
        assert body["ready"]
        assert body["resources"][RESOURCE]["devices"] == 0
    async with start(program(more), "W", "--http", "127.0.0.1:0", "--when-no-devices", "not-ready") as plugin:
        await plugin.until_readyz(503, has=f"{RESOURCE} has no devices")


async def test_a_class_whose_devices_name_the_resources_was_ready_without_any(start: Start) -> None:
    unnamed = f"{NO_DEVICE}\nresource = None\n"
    async with start(program(unnamed), "W", "--http", "127.0.0.1:0", "--when-no-devices", "not-ready") as plugin:
        assert (await plugin.until_readyz(503, has="no devices"))["reason"] == "there are no devices"


async def test_a_driver_that_is_missing_is_not_ready_in_any_case(start: Start) -> None:
    async with start(program(NO_DRIVER), "W", "--http", "127.0.0.1:0", "--when-no-devices", "ready") as plugin:
        await plugin.says("W is not ready: the driver is not loaded")
        body = await plugin.until_readyz(503, has="the driver is not loaded")
        assert body["backends"] == [{"class": "W", "reason": "the driver is not loaded"}]
