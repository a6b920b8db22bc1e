"""Nodes drawn by lot, for the examples' property tests: how an attribute breaks, and what must hold of every list."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import kdp
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp.dra.standard_attributes import standard_attributes
from kdp.hardware import Host
from kdp.testing import SysfsTree

__all__ = ["SHAPES", "attributes_of", "break_attribute", "judged"]

SHAPES: Final = ("absent", "directory", "dangling", "loop", "fifo", "EINVAL", "ENODEV", "EOPNOTSUPP")
"""How an attribute can break besides saying something odd."""


def break_attribute(tree: SysfsTree, path: str, how: bytes | str) -> None:
    """Have an attribute say these bytes, or be one of `SHAPES`."""
    place = tree.path(path)
    if isinstance(how, str) and how.startswith("E"):
        tree.fail(path, getattr(errno, how))
        return
    place.unlink()  # it may be a stand-in that cannot be written to
    if isinstance(how, bytes):
        place.write_bytes(how)
    elif how == "directory":
        place.mkdir()
    elif how == "dangling":
        place.symlink_to("/nowhere")
    elif how == "loop":
        place.symlink_to(place.name)
    elif how == "fifo":
        os.mkfifo(place)


def attributes_of(tree: SysfsTree, tops: Iterable[str], *, without: Collection[str] = ()) -> list[str]:
    """Return the attributes below some directories, sorted, but for those of these names."""
    return sorted(
        os.path.join(place, name).removeprefix(str(tree.host.root))
        for top in tops
        for place, _, files in os.walk(tree.path(top))
        for name in files
        if not os.path.islink(os.path.join(place, name)) and name not in without
    )


def judged(devices: Sequence[kdp.Device], host: Host, driver: str) -> dict[str, kdp.Device]:
    """Return by id what a discovery has found, after what must be true of every list, also in slices."""
    ids = {device.id: device for device in devices}
    assert len(ids) == len(devices), "two devices have one id"
    slices = pool_slices(
        devices,
        pool=Pool.of_node(driver, "node-0"),
        limits=Limits.of("v1.37.1"),
        standard={device.id: standard_attributes(device, host) for device in devices},
    )
    assert sum(len(each.body.get("devices", ())) for each in slices) == len(devices)
    for device in devices:
        assert device.health.is_healthy or device.health.reason
    return ids
