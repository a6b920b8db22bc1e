"""The same class, unchanged, as a DRA driver."""

from __future__ import annotations

import kdp_example_minimal
from kdp.dra.claims.cdi_specs import check_edits
from kdp.dra.names import driver_name
from kdp.dra.publishing.slices import Limits, Pool, pool_slices


def test_its_devices_are_published() -> None:
    backend, limits = kdp_example_minimal.Fuse(count=100), Limits.of("v1.34.9")
    assert backend.resource is not None
    devices = backend.discover()
    for device in devices:
        check_edits(device.edits)
    pool = Pool.of_node(driver_name(backend.resource), "node-0")
    slices = pool_slices(devices, pool=pool, limits=limits)
    items = [each.as_object(1, len(slices)) for each in slices]

    assert [device["name"] for item in items for device in item["spec"]["devices"]] == [f"fuse-{n}" for n in range(100)]
    assert {item["spec"]["driver"] for item in items} == {"fuse.example.com"}
