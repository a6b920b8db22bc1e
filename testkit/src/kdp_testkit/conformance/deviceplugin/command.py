"""`CommandSubject`: a device plugin's program, in any language."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from typing_extensions import override

from ..mounted import KUBELET
from ..program import Program
from ..verdicts import NotApplicable
from .subject import Staging, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from kdp.kubelet.paths import KubeletPaths

    from ..instance import Instance, Levers


class CommandSubject(Subject):
    """A plugin's program.

    Args:
        command: The program and its arguments, with placeholders.
        levers: What the kit can do to its hardware.
        mount: Give it a private mount namespace with the simulated directories at ``/var/lib/kubelet``; needs root.
    """

    width = 4
    has_process = True
    can_be_staged = False
    shares_hardware = True

    def __init__(self, command: Sequence[str], *, levers: Levers | None = None, mount: bool = False) -> None:
        self._program = Program(command, levers=levers, mount=mount)
        self.seen_at = os.fspath(KUBELET) if mount else None

    @override
    def tell(self, resource: str) -> None:
        self._program.levers.resource = resource

    @override
    def start(
        self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]
    ) -> AbstractAsyncContextManager[Instance]:
        if staging != Staging():
            raise NotApplicable(_reason(staging))
        return self._program.running(paths, wake)


def _reason(staging: Staging) -> str:
    if staging.allocate != "plain":
        what = {"slow": "slow", "hangs": "hang", "raises": "fail"}[staging.allocate]
        return f"the kit cannot make Allocate of a foreign program {what}"
    if staging.prepares == 0:
        return "the program does not ask for PreStartContainer"
    if staging.prepares is not None:
        return "the kit cannot make PreStartContainer of a foreign program slow"
    if staging.prefers is not None:
        return f"the program {'does not offer' if staging.prefers else 'offers'} GetPreferredAllocation"
    if staging.second:
        return "the program serves one resource only"
    if staging.without_inotify:
        return "the kit cannot take inotify from a foreign program"
    if staging.asks_often:
        return "a kubelet cannot see what a program does when a pod is gone"
    return "the kit cannot choose the devices of a foreign program"
