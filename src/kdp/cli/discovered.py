"""One discovery of a backend, as ``kdp devices`` prints it."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import attrs
import click

from ..errors import KdpError, sentence
from ..model.devices import Version
from ..model.quantities import Quantity
from .failures import Failure, warn
from .looking import discovered, listed
from .streams import console, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from ..daemon.plan import ServingPlan
    from ..model.backend import DeviceBackend
    from ..model.devices import Device
    from ..model.edits import ContainerEdits


def show(out: TextIO, backend: DeviceBackend, plan: ServingPlan, format: str) -> None:
    """Open a backend, discover once, close it, and print the devices with the pods that hold them.

    Raises:
        Failure: The discovery failed.
    """
    try:
        found = listed(discovered(backend, plan))
        # A snapshot is of another node.
        holders = _holders(plan.settings.paths.pod_resources_socket) if plan.settings.snapshot is None else None
    except KdpError as error:
        raise Failure(sentence(error)) from None
    if backend.resource is not None:
        found.setdefault(backend.resource, ())
    if format == "json":
        resources = {
            name: [
                as_json(device) | ({} if holders is None else {"held_by": holders.get((name, device.id))})
                for device in held
            ]
            for name, held in found.items()
        }
        click.echo(json.dumps({"resources": resources}, indent=2), file=out)
    else:
        _print_tables(out, found, holders or {})


def _holders(socket: Path) -> dict[tuple[str, str], str] | None:
    """Return which pod holds a device, by resource and device id; None: the kubelet does not say."""
    try:
        is_there = stat.S_ISSOCK(os.stat(socket).st_mode)
    except PermissionError as error:
        warn(f"{socket}: {error.strerror}, so which pod holds a device is not shown; run this as root to see it")
        return None
    except OSError:
        return None
    return anyio.run(_asked, socket) if is_there else None


async def _asked(socket: Path) -> dict[tuple[str, str], str] | None:
    from ..errors import PodResourcesError
    from ..kubelet.podresources import PodResources

    try:
        async with PodResources(socket).connect() as calls:
            report = await calls.list()
    except PodResourcesError as error:
        warn(f"{sentence(error)}; which pod holds a device is not shown")
        return None
    return {key: str(holder) for key, holder in report.holders.items()}


def as_json(device: Device) -> dict[str, object]:
    """Return a device as ``--format json`` shows it."""
    return {
        "id": device.id,
        "health": "Healthy" if device.health.is_healthy else "Unhealthy",
        "reason": device.health.reason,
        "numa_nodes": list(device.numa_nodes),
        "edits": edits_as_json(device.edits),
        "attributes": {name: _plain(value) for name, value in device.attributes.items()},
        "capacity": {name: _plain(value) for name, value in device.capacity.items()},
        "unit": device.unit,
    }


def edits_as_json(edits: ContainerEdits) -> dict[str, object]:
    """Return edits as ``--format json`` shows them."""
    return {
        "env": dict(edits.env),
        "device_nodes": [
            {"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions}
            for node in edits.device_nodes
        ],
        "mounts": [
            {"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only}
            for mount in edits.mounts
        ],
        "annotations": dict(edits.annotations),
        "hooks": [attrs.asdict(hook) for hook in edits.hooks],
        "cdi_devices": list(edits.cdi_devices),
    }


def _plain(value: Any) -> object:
    return value.text if isinstance(value, (Quantity, Version)) else value


def _print_tables(out: TextIO, found: Mapping[str, tuple[Device, ...]], holders: Mapping[tuple[str, str], str]) -> None:
    screen = console(out)
    if not found:
        screen.print("no devices, and the class names no resource of its own")
    for position, (resource, devices) in enumerate(found.items()):
        healthy = sum(device.health.is_healthy for device in devices)
        if position:
            screen.print()
        screen.print(f"{resource}: {_count(len(devices), 'device')}, {healthy} healthy")
        if devices:
            screen.print(_table(devices, [holders.get((resource, device.id), "") for device in devices]))


def _table(devices: tuple[Device, ...], held_by: Sequence[str]) -> RenderableType:
    columns: dict[str, list[str]] = {
        "ID": [device.id for device in devices],
        "HEALTH": [str(device.health) for device in devices],
        "HELD BY": list(held_by),
        "NUMA": [",".join(map(str, device.numa_nodes)) for device in devices],
        "UNIT": [device.unit if device.unit != device.id else "" for device in devices],
        "CONTAINER GETS": [_gist(device.edits) for device in devices],
        "ATTRIBUTES": [_pairs({**device.attributes, **device.capacity}) for device in devices],
    }
    shown = [name for name, cells in columns.items() if any(cells)]
    styles = ["" if device.health.is_healthy else "red" for device in devices]
    return table(shown, zip(*(columns[name] for name in shown), strict=True), styles)


def _gist(edits: ContainerEdits) -> str:
    parts = [node.host_path for node in edits.device_nodes]
    if edits.mounts:
        parts.append(_count(len(edits.mounts), "mount"))
    if edits.env:
        parts.append(_pairs(edits.env))
    if edits.annotations:
        parts.append(_count(len(edits.annotations), "annotation"))
    if edits.hooks:
        parts.append(_count(len(edits.hooks), "hook"))
    parts.extend(edits.cdi_devices)
    return " ".join(parts)


def _pairs(pairs: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in pairs.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
