"""Devices as slices have them."""

from __future__ import annotations

import pytest

from kdp import Device
from kdp.dra.render import render_device
from kdp.errors import InvalidValueError


def test_an_attribute_of_the_name_of_kdps_own_hid_the_device_from_its_class() -> None:
    own = {"resource": {"string": "example.com/card"}}
    for attributes in ({}, {"resource": "example.com/card"}):
        device = Device(id="a", resource="example.com/card", attributes=attributes)
        assert render_device(device, {})["attributes"] == own
    with pytest.raises(InvalidValueError, match="device 'a': attribute 'resource' is kdp's own"):
        render_device(Device(id="a", resource="example.com/card", attributes={"resource": "A1"}), {})
    assert render_device(Device(id="a", attributes={"resource": "A1"}), {})["attributes"] == {
        "resource": {"string": "A1"}
    }
