"""Checks of where a driver's sockets are: a directory that is not there yet, and paths that are too long."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from ..checks import Checks
from ..verdicts import NotApplicable

if TYPE_CHECKING:
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

_UID = "8c6e2a8e-6f0b-4d3a-9f10-2b9b51e0a7d4"
_ROOT_BYTES = 53
"""Of a kubelet's root directory under which no name with a pod's UID fits, but one of 35 bytes."""


@CHECKS.add(
    4,
    "the driver reports a missing registry directory, and waits for it",
    expected="the driver names the directory, and is registered when the kubelet has made it",
    rule="the directory is the kubelet's, and may be mounted or made later than the driver starts",
    cure="name the path and that it must be mounted; try again with growing pauses, or end and be started again",
)
async def _no_registry(scene: DraScene) -> str:
    registry = scene.node.paths.plugins_registry_dir
    await scene.leave()
    await scene.kubelet.crash()
    shutil.rmtree(registry)
    instance = await scene.start()
    scene.may_end(instance)
    await scene.until(
        lambda: os.fspath(registry) in instance.output(), scene.limit(2.0), f"the driver did not name {registry}"
    )
    await scene.elapse(0.5)
    await scene.kubelet.start()
    if instance.ending is not None:
        await scene.start()
    await scene.registered()
    return "it ended and was started again" if instance.ending is not None else "it waited"


@CHECKS.add(
    5,
    "long socket names are shortened, always in the same way",
    expected="under a long path, in a pod with a UID, the driver is registered, and again by the same names",
    rule="a socket's path has at most 107 bytes; the next container must find what this one has left",
    cure="replace the pod's UID, or the driver's name and the UID, by a digest",
)
async def _too_long(scene: DraScene) -> str:
    folder = scene.node.state.parent
    rest = _ROOT_BYTES - len(os.fsencode(folder)) - 1
    if rest < 1:
        raise NotApplicable(f"the temporary directory {folder} is too long; set TMPDIR to a shorter one")
    async with scene.moved(folder / ("x" * rest)):
        names: list[tuple[list[str], str]] = []
        for _ in range(2):
            await scene.start_again(pod_uid=_UID)
            found = sorted(path.name for path in scene.node.paths.plugins_registry_dir.iterdir() if path.is_socket())
            names.append((found, scene.endpoint))
            await scene.leave()
    scene.require(names[0] == names[1], f"the names were {names[0]}, then {names[1]}")
    return ", ".join(names[0][0])
