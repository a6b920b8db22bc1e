"""Which device nodes and mounts a GPU consists of, for the strategy ``device-nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kdp
import kdp.hardware

from .mig import MigMinors

if TYPE_CHECKING:
    from .gpus import Gpu
    from .mig import Instance
    from .options import Options

REQUIRED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
OPTIONAL = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

VULKAN = "vulkan/icd.d"


class Nodes:
    """The nodes as they are at one discovery.

    Attributes:
        driver_mounts: What brings the driver into a container, where it has a root of its own on the node.
    """

    def __init__(self, host: kdp.hardware.Host, options: Options) -> None:
        self._root = options.dev_root.rstrip("/")
        self._minors = MigMinors(host)
        there = [path for path in OPTIONAL if host.exists(f"{self._root}{path}")]
        self._shared = (*REQUIRED, *there)
        self.driver_mounts: list[kdp.Mount] = []
        if options.driver_root != "/":
            driver = options.driver_root.rstrip("/")
            self.driver_mounts.append(kdp.Mount(host_path=driver, container_path=options.driver_mount, read_only=True))
            if host.is_directory(f"{driver}/{VULKAN}"):
                self.driver_mounts.append(
                    kdp.Mount(host_path=f"{driver}/{VULKAN}", container_path=f"/etc/{VULKAN}", read_only=True)
                )

    def of(self, gpu: Gpu, instance: Instance | None) -> tuple[kdp.DeviceNode, ...]:
        """Return the nodes of a GPU or of one of its instances; those that nobody knows are left out, see `problem`."""
        paths = [*self._shared]
        if gpu.facts.minor is not None:
            paths.append(f"/dev/nvidia{gpu.facts.minor}")
            paths += self._capabilities(gpu.facts.minor, instance) or ()
        return tuple(kdp.DeviceNode(host_path=f"{self._root}{path}", container_path=path) for path in paths)

    def problem(self, gpu: Gpu, instance: Instance | None) -> str | None:
        """Return why the nodes cannot be told; None: `of` has them all."""
        if gpu.facts.minor is None:
            return "neither NVML nor /proc/driver/nvidia reports the number of its device node"
        if instance is not None and self._capabilities(gpu.facts.minor, instance) is None:
            return f"the driver names no device nodes of this MIG instance in {MigMinors.PATH}"
        return None

    def _capabilities(self, minor: int, instance: Instance | None) -> tuple[str, ...] | None:
        if instance is None:
            return ()
        if instance.gi is None or instance.ci is None:
            return None
        return self._minors.nodes(minor, instance.gi, instance.ci)
