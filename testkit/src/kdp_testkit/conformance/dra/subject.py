"""The driver under test, as the checks see it: something that can be started on a node, asked to stop, and killed.

A program in any language learns where it is by placeholders in its arguments (``{root}``, ``{kubeconfig}``, ``{node}``,
``{cdi}``, ``{state}`` and those of a device plugin) or by variables, which are those of ``kdp run`` and of Kubernetes'
own clients. A class of a vendor is `backend.DraBackendSubject`.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from kdp.kubelet.paths import KubeletPaths

from ..program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..instance import Instance, Levers


@attrs.frozen(kw_only=True)
class DraNode:
    """Where a driver finds itself.

    Attributes:
        name: The node's name, as the API server has it.
        paths: The kubelet's directories.
        kubeconfig: How to reach the API server.
        cdi: Where a container runtime looks for specs.
        state: A directory for what the driver keeps besides.
        pod_uid: The UID of the pod that the driver is in, when two of them overlap; "": it is alone.
        boot_id: Which boot of the node this is; a program reads the kernel's own.
        grace: Seconds that a claim must be gone before the driver undoes it on its own, where it can be told so.
    """

    name: str
    paths: KubeletPaths
    kubeconfig: Path
    cdi: Path
    state: Path
    pod_uid: str = ""
    boot_id: str = "first-boot"
    grace: float = 1.0


class DraSubject(abc.ABC):
    """The driver under test.

    Attributes:
        previous: The version before it, of which claims may still be prepared; None: there is none.
        can_reboot: Whether it takes ``DraNode.boot_id`` for the node's boot.
        shares_hardware: Whether all instances see the same hardware, so that only one check at a time may change it.
        takes_grace: Whether it takes ``DraNode.grace`` for how long a claim must be gone.
    """

    previous: DraSubject | None = None
    can_reboot: bool = False
    shares_hardware: bool = False
    takes_grace: bool = False

    @abc.abstractmethod
    def start(self, node: DraNode, wake: Callable[[], None]) -> AbstractAsyncContextManager[Instance]:
        """Start an instance; it is gone, with everything that it started, when the context is left.

        Args:
            node: Where it is.
            wake: Called when the instance has ended.
        """

    def extended(self) -> str:
        """Return the extended resource that a device plugin for these devices would have; "": it is not known."""
        return ""


class DraCommandSubject(DraSubject):
    """A driver's program.

    Args:
        command: The program and its arguments, with placeholders.
        levers: What the kit can do to its hardware.
        previous: The version before it.
        extended: The extended resource that a device plugin for these devices would have; "": it is not known.
    """

    shares_hardware = True

    def __init__(
        self,
        command: Sequence[str],
        *,
        levers: Levers | None = None,
        previous: DraSubject | None = None,
        extended: str = "",
    ) -> None:
        self._program = Program(command, levers=levers)
        self._extended = extended
        self.previous = previous

    @override
    def extended(self) -> str:
        return self._extended

    @override
    def start(self, node: DraNode, wake: Callable[[], None]) -> AbstractAsyncContextManager[Instance]:
        values = {
            "kubeconfig": os.fspath(node.kubeconfig),
            "node": node.name,
            "cdi": os.fspath(node.cdi),
            "state": os.fspath(node.state),
            "pod_uid": node.pod_uid,
        }
        variables = {
            "KUBECONFIG": values["kubeconfig"],
            "NODE_NAME": node.name,
            "CDI_ROOT": values["cdi"],
            "KDP_MODE": "dra",
            "KDP_KUBECONFIG": values["kubeconfig"],
            "KDP_NODE_NAME": node.name,
            "KDP_CDI_DIR": values["cdi"],
            "KDP_STATE_DIR": values["state"],
        }
        if node.pod_uid:
            variables |= {"POD_UID": node.pod_uid, "KDP_POD_UID": node.pod_uid}
        return self._program.running(node.paths, wake, more=values, environment=variables)
