"""`Subject`: the device plugin under test, which can be started any number of times, each on a kubelet's directories.

There are two: `CommandSubject` runs a program in any language, `backend.BackendSubject` runs a vendor's class under kdp
in this process. What a subject cannot do it says with `NotApplicable` and the reason. It never pretends.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import override

from ..checks import NotApplicable
from ..mounted import KUBELET
from ..program import Program

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kdp.kubelet.paths import KubeletPaths

    from ..instance import Instance, Levers

AllocateMode = Literal["plain", "slow", "hangs", "raises"]

SECRET = "token-4f1c9a77"  # noqa: S105 - stands for one: it must not be seen anywhere
"""Is part of the exception that a staged Allocate raises; must not reach the pod."""


@attrs.frozen(kw_only=True)
class Staging:
    """What the kit asks of the plugin beyond its own nature, to play a scenario.

    Attributes:
        devices: This many devices instead of the plugin's own number.
        numa: NUMA nodes of the devices in their order, repeated; -1 is "unknown" as sysfs says it.
        allocate: How Allocate behaves; anything but ``plain`` lasts until `Instance.release`.
        prefers: GetPreferredAllocation is offered (True) or not (False); None: as the plugin has it.
        prepares: Seconds that PreStartContainer takes; None: as the plugin has it.
        second: Serve a second resource beside the first.
        without_inotify: The kernel refuses to watch directories.
        asks_often: It asks the pod-resources API many times a second for what it asks for once in a while, and takes
            the kubelet for one that knows all its pods.
    """

    devices: int | None = None
    numa: Sequence[Sequence[int]] | None = None
    allocate: AllocateMode = "plain"
    prefers: bool | None = None
    prepares: float | None = None
    second: bool = False
    without_inotify: bool = False
    asks_often: bool = False


class Subject(abc.ABC):
    """The plugin under test.

    Attributes:
        width: How many checks may run beside one another.
        has_process: Whether each instance is a process of its own.
        can_be_staged: Whether it can be made what a `Staging` asks for.
        shares_hardware: Whether all instances see the same hardware, so that only one check at a time may change it.
        seen_at: Where instances see the kubelet's root directory, if not where it is.
        node_root: Where the node's root directory is, of which replies name the paths.
    """

    width: int = 8
    has_process: bool = False
    can_be_staged: bool = True
    shares_hardware: bool = False
    seen_at: str | None = None
    node_root: str = "/"

    def tell(self, resource: str) -> None:  # noqa: B027 - only levers and the kit's own hooks ask
        """Say which resource is judged, as soon as it is known."""

    @abc.abstractmethod
    def start(
        self, paths: KubeletPaths, staging: Staging, wake: Callable[[], None]
    ) -> AbstractAsyncContextManager[Instance]:
        """Start an instance; it is gone, with everything that it started, when the context is left.

        Args:
            paths: The kubelet's directories.
            staging: What it must be beyond its own nature.
            wake: Called when the instance has ended.

        Raises:
            NotApplicable: It cannot be staged like that.
        """


class CommandSubject(Subject):
    """A plugin's program.

    Args:
        command: The program and its arguments, with placeholders.
        levers: What the kit can do to its hardware.
        mount: Give it a private mount namespace with the simulated directories at ``/var/lib/kubelet``; needs root.
        node_root: The node's root directory on this machine; replies name paths below it.
        environment: More variables for the program.
    """

    width = 4
    has_process = True
    can_be_staged = False
    shares_hardware = True

    def __init__(
        self,
        command: Sequence[str],
        *,
        levers: Levers | None = None,
        mount: bool = False,
        node_root: str | os.PathLike[str] = "/",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._program = Program(command, levers=levers, mount=mount)
        self._environment = environment
        self.node_root = os.fspath(node_root)
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
        return self._program.running(paths, wake, environment=self._environment)


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
