"""MPS: several containers on one GPU through NVIDIA's Multi-Process Service, each with a part of it.

The control daemon is somebody else's: on the node, or in a container beside the plugin. Without it a CUDA program runs
on the whole GPU without limits (driver 580), so we look whether it is there before anything is listed, at each
discovery, and before each start of a container.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

from .options import MAX_MPS_CLIENTS_BEFORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    import kdp.hardware

    from .gpus import Gpu


def daemon_problem(host: kdp.hardware.Host, pipe: str) -> str | None:
    """Return why the MPS control daemon cannot be used; None: it answers.

    Args:
        host: The node's files.
        pipe: The daemon's pipe directory on the node, its ``CUDA_MPS_PIPE_DIRECTORY``.
    """
    advice = "start nvidia-cuda-mps-control -d with this CUDA_MPS_PIPE_DIRECTORY, or set mps_pipe"
    try:
        folder = os.open(host.path(host.resolve(pipe)), os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        return f"the MPS control daemon's directory {pipe} is not there ({error.strerror}); {advice}"
    try:
        _knock(f"/proc/self/fd/{folder}/control")  # a path of a socket has 107 bytes at most
    except OSError as error:
        return (
            f"the MPS control daemon does not answer at {pipe}/control ({os.strerror(error.errno or errno.EIO)}); "
            f"{advice}"
        )
    finally:
        os.close(folder)
    return None


def _knock(control: str) -> None:
    """See that a daemon has this socket, or reads this pipe.

    A connection would be two lines in the daemon's log each time. One of another type is refused by the kernel, and
    with another error if the socket is nobody's any more. Driver 580 has SOCK_SEQPACKET.

    Raises:
        OSError: There is no daemon.
    """
    if not stat.S_ISSOCK(os.stat(control).st_mode):
        os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))  # ENXIO: nobody reads
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knocking:
        try:
            knocking.connect(control)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise


def client_problem(gpu: Gpu, clients: int) -> str | None:
    """Return why a GPU cannot have so many clients; None: it can."""
    compute = gpu.facts.compute
    if compute is not None and compute < (7, 5) and clients > MAX_MPS_CLIENTS_BEFORE:
        return (
            f"mps={clients}: a GPU of compute capability {compute[0]}.{compute[1]} takes {MAX_MPS_CLIENTS_BEFORE} MPS "
            "clients at most"
        )
    return None


def limits(gpus: Iterable[Gpu], clients: int, parts: int) -> dict[str, str]:
    """Return the variables that limit a container to its parts.

    Args:
        gpus: The GPUs it gets parts of.
        clients: How many parts a GPU has.
        parts: How many of each GPU it gets.
    """
    held = list(gpus)
    found = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, 100 * parts // clients))}
    memories = [gpu.facts.memory_mib for gpu in held]
    if None not in memories:
        least = min(memory for memory in memories if memory is not None)
        limit = f"{least * parts // clients}M"
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{n}={limit}" for n in range(len(held)))
    return found
