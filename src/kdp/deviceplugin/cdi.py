"""A resource's devices by CDI: the file that describes them, and their names in Allocate's reply.

A runtime without CDI ignores CDI names silently and starts the container without the device (containerd 1.6, and 1.7 as
it is delivered). So device nodes, mounts and variables are given beside the names, unless the admin says that the
runtime does CDI. The same node by both ways is one node in the container.

The kubelet keeps Allocate's reply as long as the container and gives it again at each start of it, without asking us,
so the names must resolve at any time: the file is written when the devices are first known, before the kubelet hears of
them, when a device or what its nodes lead to has changed, and again at Allocate if somebody harmed it; a stop leaves it
there. A device whose id means other hardware than a pod was given is not in the file: its container does not start.

While the file cannot be written, devices that no container could get without it are not offered: see
`ResourceCdi.obstacle`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from ..cdi import CdiDevice, CdiDirectory, CdiEdits, CdiSpec, cdi_kind
from ..cdi.render import device_of, render_edits
from ..errors import CdiWriteError
from . import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hardware import Host
    from ..model.devices import Device
    from ..model.edits import ContainerEdits

logger = logging.getLogger(__name__)

_MOST_KEY = 63
"""Characters of an annotation's name behind its prefix."""


@attrs.frozen(kw_only=True)
class CdiOptions:
    """How CDI is used.

    Attributes:
        directory: Where runtimes look, as this process sees it.
        only: Whether the runtime is known to do CDI, so that nothing is given beside the names.
        names: In which fields of Allocate's reply the names are: CRI's, which needs Kubernetes 1.28 and containerd 1.7
            or CRI-O 1.28, annotations, which older ones read, or both.
    """

    directory: Path
    only: bool = False
    names: Literal["field", "annotation", "both"] = "field"


class ResourceCdi:
    """The CDI side of one resource. Its methods block for some system calls, and may be called from any thread.

    Args:
        joined_env: Variables that several devices of a container join; they have no place in a device's spec.

    Attributes:
        problem: Why the file cannot be written; None: it is written, or there was no need.
    """

    def __init__(self, resource: str, options: CdiOptions, host: Host, joined_env: Mapping[str, str]) -> None:
        self._resource = resource
        self._options = options
        self._host = host
        self._joined = frozenset(joined_env)
        self._kind = cdi_kind(resource)
        self._directory = CdiDirectory(options.directory)
        self._lock = threading.Lock()
        self._rendered: dict[str, CdiDevice | None] = {}
        self._written: tuple[int, int, int] | None = None
        self.problem: str | None = None

    def obstacle(self, device: Device) -> str | None:
        """Return why no container can get this device now; None: one can.

        Beside device nodes, only a hook needs the file: an Allocate without hooks leaves the names out.
        """
        return self.problem if self._options.only or device.edits.hooks else None

    def look(self) -> None:
        """Write the file again if it is missing, was harmed, or could not be written the last time."""
        with self._lock:
            self._try_to_write(changed=False)

    def update(self, devices: Iterable[Device]) -> None:
        """Describe these devices and no others. What cannot be written is logged once and tried again later."""
        with self._lock:
            before, edits = self._rendered, dict[int, CdiEdits]()
            self._rendered = {device.id: self._render(device, edits) for device in devices}
            self._try_to_write(changed=before != self._rendered)

    def _render(self, device: Device, rendered: dict[int, CdiEdits]) -> CdiDevice | None:
        """Render a device as its nodes are now; ``rendered`` has what was rendered before by the same objects."""
        key = id(device.edits)  # replicas share it
        if key not in rendered:
            rendered[key] = render_edits(device.edits, self._host, without_env=self._joined)
        return device_of(device, rendered[key])

    def _try_to_write(self, *, changed: bool) -> None:
        with contextlib.suppress(CdiWriteError):  # it is logged
            self._write(changed=changed)

    def _write(self, *, changed: bool) -> None:
        """Write the file, unless nothing has changed and it is as we left it; log a failure, and its end.

        Raises:
            CdiWriteError: It cannot be written.
        """
        try:
            if changed or self._written is None or self._written != self._found():
                devices = [spec for spec in self._rendered.values() if spec is not None]
                if devices:
                    self._directory.write(CdiSpec(kind=self._kind, devices=devices))
                else:
                    self._directory.remove(self._kind)
                self._written = self._found()
        except CdiWriteError as error:
            if str(error) != self.problem:
                logger.error("%s: %s", self._resource, error, extra={"resource": self._resource})
            self.problem = str(error)
            self._written = None  # what lies there is outdated
            raise
        if self.problem is not None:
            logger.info("%s: the CDI file is written again", self._resource, extra={"resource": self._resource})
        self.problem = None

    def _found(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._directory.file(self._kind))
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def withdraw(self) -> None:
        """Remove the file: the resource is there no more."""
        with self._lock:
            self._directory.remove(self._kind)

    def reply(self, devices: Iterable[Device], edits: ContainerEdits) -> wire.ContainerReply:
        """Return Allocate's reply for one container.

        Args:
            devices: What the container gets.
            edits: What it is to be given; what is the devices' own is in their specs, too.

        Raises:
            InvalidValueError: A node or a mount's source is not there, or a hook is nobody's own.
            CdiWriteError: The file cannot be written, and the reply would not do without.
        """
        devices = tuple(devices)
        in_specs = [device.edits for device in devices]
        hooks = tuple(hook for hook in edits.hooks if not any(hook in own.hooks for own in in_specs))
        whole = wire.render(attrs.evolve(edits, hooks=hooks), self._host)
        try:
            names = self._names(devices)
        except CdiWriteError:  # it is logged
            if self._options.only or edits.hooks:
                raise
            logger.debug("%s: given without CDI names", self._resource, extra={"resource": self._resource})
            return whole
        reply = whole if not self._options.only else wire.render(self._beside(edits, in_specs), self._host)
        if self._options.names != "annotation":
            for name in names:  # behind those that the edits name
                reply.cdi_devices.add(name=name)
        if self._options.names != "field" and names:
            reply.annotations[self._annotation(names)] = ",".join(names)
        return reply

    def _names(self, devices: Iterable[Device]) -> list[str]:
        with self._lock:
            changed, edits = False, dict[int, CdiEdits]()
            for device in devices:
                # Anew each time: a node that was plugged in again may have another owner, or be another link's end.
                spec = self._render(device, edits)
                changed |= self._rendered.get(device.id) != spec
                self._rendered[device.id] = spec
            self._write(changed=changed)
            specs = [self._rendered[device.id] for device in devices]
        return [f"{self._kind}={spec.name}" for spec in specs if spec is not None]

    def _beside(self, edits: ContainerEdits, in_specs: list[ContainerEdits]) -> ContainerEdits:
        """Return what no spec brings: joined variables, annotations, and what ``allocate`` made up."""
        env = {(name, text) for own in in_specs for name, text in own.env.items() if name not in self._joined}
        nodes = {node for own in in_specs for node in own.device_nodes}
        mounts = {mount for own in in_specs for mount in own.mounts}
        return attrs.evolve(
            edits,
            env={name: text for name, text in edits.env.items() if (name, text) not in env},
            device_nodes=[node for node in edits.device_nodes if node not in nodes],
            mounts=[mount for mount in edits.mounts if mount not in mounts],
            hooks=(),
        )

    def _annotation(self, names: list[str]) -> str:
        """Return the annotation key for device names: unique per plugin and container, at most 63 characters."""
        name = "kdp_" + self._resource.replace("/", "_")
        if len(name) > _MOST_KEY:
            name = f"{name[: _MOST_KEY - 9]}_{hashlib.sha256(self._resource.encode()).hexdigest()[:8]}"
        return f"cdi.k8s.io/{name}"
