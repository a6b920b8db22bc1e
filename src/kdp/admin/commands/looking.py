"""One look at a backend, where in the vendor's code it failed, and how ``kdp devices`` prints what it found."""

from __future__ import annotations

import functools
import json
import logging
import os
import stat
import sys
from contextlib import contextmanager, suppress
from logging.handlers import BufferingHandler
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import attrs
import click

from ...command.failures import Failure, warn
from ...command.living import ask_status, living_plugins
from ...command.streams import console, shown, table
from ...daemon.places import warn_of_missing_places
from ...daemon.sources import warn_of_slips
from ...errors import HookFailedError, InvalidValueError, KdpError, in_one_line, sentence
from ...model.devices import Version
from ...model.quantities import Quantity
from ...operations.status_document import NOT_TOLD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from ...daemon.plan import ServingPlan
    from ...daemon.settings import Settings
    from ...model.backend import DeviceBackend
    from ...model.devices import Device
    from ...model.edits import ContainerEdits
    from ...operations.status_document import ServedResource

_T = TypeVar("_T")


def discovered(backend: DeviceBackend, plan: ServingPlan) -> Mapping[str, tuple[Device, ...]]:
    """Open a backend of an invocation's plan, discover once, close it, and return its devices by resource."""
    from ...supervision.discover import discover_once

    return looked(discover_once, backend, plan)


def listed(found: Mapping[str, tuple[Device, ...]]) -> dict[str, tuple[Device, ...]]:
    """Return the devices that a device plugin lists, by resource: no partition that is still to be made."""
    kept = {name: tuple(device for device in devices if device.exists) for name, devices in found.items()}
    return {name: devices for name, devices in kept.items() if devices or not found[name]}


def looked(look: Callable[..., Awaitable[_T]], backend: DeviceBackend, plan: ServingPlan) -> _T:
    """Return what a function of `kdp.supervision.discover` finds.

    Raises:
        KdpError: The backend is not ready, or a hook misbehaved.
    """
    import anyio

    assert plan.host is not None  # an invocation's plan has one
    warn_of_slips(os.environ)
    cause: BaseException | None = None
    with _logged_failures() as logged:
        try:
            return anyio.run(functools.partial(look, backend, host=plan.host))
        except HookFailedError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, InvalidValueError):  # the sentence has it already
                raise
            # A person at a terminal, not a pod's author: the details may be shown.
            told = f"{type(cause).__name__}; the plugin's log has the details"
            raise HookFailedError(sentence(error).replace(told, in_one_line(cause))) from cause
        finally:
            for record in logged:
                _show_record(record, cause)


@contextmanager
def _logged_failures() -> Generator[list[logging.LogRecord]]:
    """Collect what is logged of hooks that fail."""
    handler = BufferingHandler(capacity=sys.maxsize)
    logger = logging.getLogger("kdp.supervision.hooks")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def _show_record(record: logging.LogRecord, cause: BaseException | None) -> None:
    """Show a hook's failure; of the one that ends the command only the frames, since its error says the rest."""
    kind, error, trace = record.exc_info or (None, None, None)
    if error is None or error is not cause:
        click.echo(shown(record.getMessage()), err=True)
    if kind is not None and error is not None:
        lines = [*TracebackException(kind, error, trace).format()]
        click.echo(shown("".join(lines[:-1] if error is cause else lines).rstrip("\n")), err=True)


def show(out: TextIO, backend: DeviceBackend, plan: ServingPlan, format: str) -> None:
    """Open a backend, discover once, close it, and print the devices with the pods that hold them.

    Raises:
        Failure: The discovery failed.
    """
    warn_of_missing_places(plan.settings)
    try:
        found = listed(discovered(backend, plan))
        # A snapshot is of another node.
        holders = _holders(plan.settings, found) if plan.settings.snapshot is None else None
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


def _holders(settings: Settings, resources: Collection[str]) -> dict[tuple[str, str], str] | None:
    """Return the pods of devices, by resource and device id. `None` if the kubelet and the plugins do not tell.

    A running plugin of these resources has listed them. Without one, the command sends a List, which may do harm
    (`kdp.kubelet.list_guard`).
    """
    served = _served(settings, resources)
    if not served:
        return _asked_of_kubelet(settings.paths.pod_resources_socket)
    told = [(each.name, device) for each in served for device in each.listed if device.held_by != NOT_TOLD]
    return {(name, device.id): device.held_by for name, device in told if device.held_by} if told else None


def _served(settings: Settings, resources: Collection[str]) -> list[ServedResource]:
    """Return the resources among these that running plugins serve."""
    found: list[ServedResource] = []
    living, _ = living_plugins(
        socket=None, state_dir=_given(settings.state_dir), kubelet_root=_given(settings.kubelet_root)
    )
    for socket in living:
        with suppress(Failure):  # another program
            found += [each for each in ask_status(socket).resources if each.name in resources]
    return found


def _given(place: Path | None) -> str | None:
    return None if place is None else str(place)


def _asked_of_kubelet(socket: Path) -> dict[tuple[str, str], str] | None:
    import anyio

    try:
        is_there = stat.S_ISSOCK(os.stat(socket).st_mode)
    except PermissionError as error:
        warn(f"{socket}: {error.strerror}, so which pod holds a device is not shown; run this as root to see it")
        return None
    except OSError:
        return None
    return anyio.run(_asked, socket) if is_there else None


async def _asked(socket: Path) -> dict[tuple[str, str], str] | None:
    from ...errors import PodResourcesError
    from ...kubelet.podresources import PodResources

    try:
        async with PodResources(socket).connect() as calls:
            report = await calls.list()
    except PodResourcesError as error:
        warn(f"{sentence(error)}; which pod holds a device is not shown")
        return None
    return {key: ", ".join(map(str, holders)) for key, holders in report.holders.items()}


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
    heads = [name for name, cells in columns.items() if any(cells)]
    styles = ["" if device.health.is_healthy else "red" for device in devices]
    return table(heads, zip(*(columns[name] for name in heads), strict=True), styles)


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
