"""The device manager's checkpoint: what it holds, and the file that plugins see it write.

The kubelet writes ``kubelet_internal_checkpoint`` into the plugins' own directory after every ListAndWatch message
and every allocation: a temporary file whose name starts with a dot, then a rename (contract sections 4.4 and 5).
Plugins that watch the directory get these events, so the simulated kubelet makes them too. Its content survives a
restart (section 4.5); the layout is the kubelet's, the checksum is our own: nobody but this class reads it.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..protocol.wire import decode_reply, encode_reply
from .assignments import Assignment

CHECKPOINT_NAME: Final = "kubelet_internal_checkpoint"


@attrs.frozen(kw_only=True)
class Checkpoint:
    """What a device manager remembers over a restart.

    Attributes:
        registered: The healthy ids of each known resource; after a restart only the names are used.
        assignments: Pod uid -> container -> resource -> what it holds.
    """

    registered: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    assignments: Mapping[str, Mapping[str, Mapping[str, Assignment]]] = attrs.field(
        factory=dict[str, Mapping[str, Mapping[str, Assignment]]]
    )

    def to_json(self) -> str:
        """Return the file's content."""
        entries = [
            {
                "PodUID": pod,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in assignment.by_numa_node.items()},
                "AllocResp": base64.b64encode(encode_reply(assignment.reply)).decode(),
            }
            for pod, containers in self.assignments.items()
            for container, resources in containers.items()
            for resource, assignment in resources.items()
        ]
        data = {
            "PodDeviceEntries": entries or None,
            "RegisteredDevices": {resource: list(ids) for resource, ids in self.registered.items()},
        }
        text = _compact(data)
        return f'{{"Data":{text},"Checksum":{zlib.crc32(text.encode())}}}'

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Read a file's content.

        Raises:
            ValueError: It is cut off, altered, or no checkpoint of ours.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            data: dict[str, Any] = document["Data"]
            assignments: dict[str, dict[str, dict[str, Assignment]]] = {}
            for entry in data["PodDeviceEntries"] or ():
                assignments.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})[
                    entry["ResourceName"]
                ] = Assignment(
                    {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()},
                    decode_reply(base64.b64decode(entry["AllocResp"])),
                )
            registered = {resource: tuple(ids) for resource, ids in data["RegisteredDevices"].items()}
            checksum = document["Checksum"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a device manager's checkpoint: {error!r}") from error
        if checksum != zlib.crc32(_compact(data).encode()):
            raise ValueError("the checkpoint is corrupt: its checksum does not match")
        return cls(registered=registered, assignments=assignments)

    @classmethod
    def load(cls, directory: Path) -> Checkpoint | None:
        """Read the checkpoint of this plugin directory; None if there is none or it is corrupt.

        The kubelet goes on with an empty state after a checkpoint that it cannot read, and so do we.
        """
        try:
            return cls.from_json((directory / CHECKPOINT_NAME).read_text())
        except (OSError, ValueError):
            return None

    def save(self, directory: Path) -> None:
        """Write the checkpoint as the kubelet does: dot file, then rename.

        It is not flushed to the disk, which the kubelet's is: no test cuts the power.

        Raises:
            OSError: The directory is gone or cannot be written.
        """
        handle, name = tempfile.mkstemp(prefix=".", dir=directory)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(self.to_json())
            os.rename(name, directory / CHECKPOINT_NAME)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _compact(data: Mapping[str, object]) -> str:
    return json.dumps(data, separators=(",", ":"))
