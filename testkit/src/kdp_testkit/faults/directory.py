"""Faults 21 to 24: the plugin directory."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ..devicemanager.checkpoint import CHECKPOINT_NAME
from .base import FaultGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class DirectoryFaults(FaultGroup):
    """Faults of the plugin directory."""

    def wipe_sockets(self) -> None:
        """Fault 21: every socket of the plugin directory but kubelet.sock is deleted.

        On a node: every kubelet's start (section 4.3); here without one.

        A good plugin keeps a stream that lives, and registers under a new name when it ends.
        """
        self._wipe(lambda path: path.is_socket())

    def wipe_files(self) -> None:
        """Fault 22: everything in the plugin directory but kubelet.sock, directories and the checkpoint is deleted.

        On a node: the start of kubelets up to 1.30 and of 1.31.1 to 1.32 (section 4.3).

        A good plugin keeps no state there.
        """
        self._wipe(lambda path: not path.is_dir())

    def delete_socket(self, name: str) -> None:
        """Fault 23: one plugin's socket is deleted while it serves.

        On a node: another instance's end, which unlinks by path (section 11).

        A good plugin keeps a stream that lives, and notices the loss when it needs the name.
        """
        (self._kubelet.paths.device_plugin_dir / name).unlink()

    def replace_directory(self) -> None:
        """Fault 24: the plugin directory is removed and made again, empty; the kubelet must be stopped.

        On a node: a reinstalled kubelet. A pod that mounts the old one sees nothing ever after (section 4.4).

        A good plugin watches the new directory, or exits with a code of its own where a mount pins the old one.
        """
        self._must_be_stopped("its directory cannot be replaced under it")
        directory = self._kubelet.paths.device_plugin_dir
        shutil.rmtree(directory)
        directory.mkdir(mode=0o750, parents=True)

    def _wipe(self, is_victim: Callable[[Path], bool]) -> None:
        keep = {self._kubelet.paths.kubelet_socket.name, CHECKPOINT_NAME}
        for path in self._kubelet.paths.device_plugin_dir.iterdir():
            if path.name not in keep and is_victim(path):
                path.unlink()
