"""IMEX channels: with the device node of one a container may use the memory of GPUs on other nodes of an NVLink domain.

The driver has the channels; an administrator makes their nodes, which are gone after a reboot (NVIDIA's IMEX guide). As
by NVIDIA's own plugin, every container with a GPU is given the channels that the options name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

import kdp
import kdp.hardware

if TYPE_CHECKING:
    from kdp.cdi import CdiRegistry

    from .options import Options

DIRECTORY = "/dev/nvidia-caps-imex-channels"
VARIABLE = "NVIDIA_IMEX_CHANNELS"


@attrs.frozen
class Channels:
    """The channels that a container gets, as they are at one discovery.

    Attributes:
        numbers: Of those that are there.
        nodes: Their device nodes, for the strategy ``device-nodes``.
        cdi_devices: Their CDI devices, for the strategy ``cdi``.
        absent: Why some are not there, as a sentence; None: all are.
    """

    numbers: tuple[int, ...] = ()
    nodes: tuple[kdp.DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    absent: str | None = None


def look_for(host: kdp.hardware.Host, options: Options, cdi: CdiRegistry | None) -> Channels:
    """Return the channels that the options name.

    Args:
        host: The node's files.
        options: The admin's.
        cdi: The node's CDI devices; None: nobody needs them.
    """
    if not options.imex_channels:
        return Channels()
    root = options.dev_root.rstrip("/")
    nodes = {
        number: kdp.DeviceNode(
            host_path=f"{root}{DIRECTORY}/channel{number}", container_path=f"{DIRECTORY}/channel{number}"
        )
        for number in options.imex_channels
    }
    names = {number: f"{options.cdi_kind.partition('/')[0]}/imex-channel={number}" for number in options.imex_channels}
    absent: dict[int, str] = {}
    if options.imex_by_node:
        for number, node in nodes.items():
            if host.device_type(node.host_path) != "char":
                absent[number] = f"{node.host_path} is not there; make it with mknod"
    if cdi is not None:
        for number, name in names.items():
            if (problem := cdi.problem(name, "run nvidia-ctk cdi generate --mode=imex")) is not None:
                absent.setdefault(number, problem)
    there = [number for number in options.imex_channels if number not in absent]
    return Channels(
        numbers=tuple(there),
        nodes=tuple(nodes[number] for number in there),
        cdi_devices=tuple(names[number] for number in there),
        absent="; ".join(f"IMEX channel {number}: {why}" for number, why in absent.items()) or None,
    )
