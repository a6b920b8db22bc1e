"""A whole device plugin: the FUSE device, for so many containers of the node at a time."""

from __future__ import annotations

from typing_extensions import override

import kdp


class Fuse(kdp.DeviceBackend):
    """``/dev/fuse`` can be opened by any number of processes, so each of ``count`` containers may have it."""

    resource = "example.com/fuse"

    def __init__(self, count: int = 10) -> None:
        self.count = count

    @override
    def discover(self) -> list[kdp.Device]:
        return kdp.Device.counted("fuse", self.count, edits=kdp.ContainerEdits.of_node("/dev/fuse"))
