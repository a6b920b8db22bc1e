"""How a container gets its GPU: one function for each strategy, and their sum.

============== ====================================================== ==================================================
strategy       what Allocate answers                                  who does the rest, on the node
============== ====================================================== ==================================================
envvar         ``NVIDIA_VISIBLE_DEVICES=<names>``                     NVIDIA's container runtime, default or
RuntimeClass volume-mounts  ``/dev/null`` mounted under the name of each GPU       the same, told to accept that
device-nodes   the device nodes; the driver, if it has its own root   nobody; the image may have to bring the driver cdi
names of CDI devices                                   a runtime with CDI, and NVIDIA's CDI spec
============== ====================================================== ==================================================

Where neither of the first two is used, ``NVIDIA_VISIBLE_DEVICES=void`` tells NVIDIA's runtime, if there is one, to
leave the container alone: images of CUDA ask for all GPUs of the node otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kdp

from .imex import VARIABLE as IMEX_VARIABLE

if TYPE_CHECKING:
    from .gpus import Gpu
    from .imex import Channels
    from .mig import Instance
    from .nodes import Nodes
    from .options import Naming, Options

JOINED_ENV = {"NVIDIA_VISIBLE_DEVICES": ","}

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"
"""Where NVIDIA's runtime looks for mounts that name GPUs."""


def name_of(gpu: Gpu, instance: Instance | None, naming: Naming) -> str:
    """Return what NVIDIA's tools call it: its UUID, or its index: ``0``, and ``0:1`` of a MIG instance."""
    if naming == "uuid":
        return instance.uuid if instance else gpu.uuid
    return f"{gpu.index}:{instance.index}" if instance else str(gpu.index)


def edits_of(
    gpu: Gpu, instance: Instance | None, nodes: Nodes | None, channels: Channels, options: Options
) -> kdp.ContainerEdits:
    """Return what a container needs to use a GPU, or one of its MIG instances.

    Args:
        gpu: The GPU.
        instance: The instance; None: the whole GPU.
        nodes: The device nodes, for the strategy ``device-nodes``.
        channels: The IMEX channels that are there.
        options: The admin's.
    """
    name = name_of(gpu, instance, options.naming)
    env = {VARIABLE: "void"}
    mounts: list[kdp.Mount] = []
    device_nodes: tuple[kdp.DeviceNode, ...] = ()
    cdi_devices: list[str] = []
    if "envvar" in options.strategies:
        env[VARIABLE] = name
        if channels.numbers:
            env[IMEX_VARIABLE] = ",".join(map(str, channels.numbers))
    if "volume-mounts" in options.strategies:
        env[VARIABLE] = MOUNTS
        mounts.append(kdp.Mount(host_path="/dev/null", container_path=f"{MOUNTS}/{name}"))
        mounts += [
            kdp.Mount(host_path="/dev/null", container_path=f"{MOUNTS}/imex/{number}") for number in channels.numbers
        ]
    if nodes is not None:
        device_nodes = (*nodes.of(gpu, instance), *channels.nodes)
        mounts += nodes.driver_mounts
    if "cdi" in options.strategies:
        cdi_devices += [f"{options.cdi_kind}={name}", *channels.cdi_devices]
    env |= {f"NVIDIA_{feature.upper()}": "enabled" for feature in options.features}
    if options.mps:
        env["CUDA_MPS_PIPE_DIRECTORY"] = options.mps_pipe
        mounts += [
            kdp.Mount(host_path=options.mps_pipe),
            kdp.Mount(host_path=options.mps_shm, container_path="/dev/shm"),  # noqa: S108 - the container's
        ]
    return kdp.ContainerEdits(env=env, device_nodes=device_nodes, mounts=mounts, cdi_devices=cdi_devices)
