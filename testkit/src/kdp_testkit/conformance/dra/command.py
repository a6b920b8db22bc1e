"""`DraCommandSubject`: a DRA driver's program, in any language, started anew for each check.

It learns where it is by placeholders in its arguments (``{root}``, ``{kubeconfig}``, ``{node}``, ``{cdi}``, ``{state}``
and those of a device plugin) or by variables, which are those of ``kdp run`` and of Kubernetes' own clients.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from typing_extensions import override

from ..program import Program
from .subject import DraNode, DraSubject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..instance import Instance, Levers


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
