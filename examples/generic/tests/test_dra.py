"""The same class, unchanged, as a DRA driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import kdp
from kdp.dra.claims.cdi_specs import check_edits
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp_example_generic import Generic

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree

Make = Callable[[str], Generic]

SERIAL = "/dev/serial/by-id/usb-FTDI_Quad_RS232-HS_with_a_very_long_name_FT4XYZ12-if00-port0"


def _published(devices: list[kdp.Device]) -> list[dict[str, Any]]:
    for device in devices:
        check_edits(device.edits)
    pool = Pool.of_node("serial.example.com", "node-0")
    slices = pool_slices(devices, pool=pool, limits=Limits.of("v1.34.9"))
    return [device for each in slices for device in each.body["devices"]]


def test_its_devices_are_published_whatever_their_nodes_are_called(tree: Tree, backend: Make) -> None:
    tree.node("/dev/ttyUSB0", SERIAL)
    paths = "[{path: /dev/ttyUSB*}], [{path: /dev/serial/by-id/*}]"
    groups = ", ".join(f"{{paths: {each}}}" for each in paths.split(", "))

    short, long = _published(backend(f"resources: [{{name: example.com/serial, groups: [{groups}]}}]").discover())

    resource = {"resource": {"string": "example.com/serial"}}
    assert short["attributes"] == {"path": {"string": "/dev/ttyUSB0"}, **resource}
    assert long["attributes"] == resource, "a text of more than 64 bytes is none for a ResourceSlice"
    assert len(long["name"]) <= 63


def test_annotations_are_refused_with_what_to_do(tree: Tree, backend: Make) -> None:
    tree.node("/dev/ttyUSB0")
    group = "{annotations: {example.com/port: '{path}'}, paths: [{path: /dev/ttyUSB*}]}"
    devices = backend(f"resources: [{{name: example.com/serial, groups: [{group}]}}]").discover()

    with pytest.raises(kdp.InvalidValueError) as caught:
        _published(devices)
    assert str(caught.value) == (
        "annotation 'example.com/port': a DRA driver gives devices by CDI, which has no annotations of containers; "
        "leave it out"
    )
