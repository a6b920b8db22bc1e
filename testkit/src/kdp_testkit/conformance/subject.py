"""The plugin under test, as the checks see it: something that can be started, asked to stop, and looked at.

`Subject` makes any number of `Instance`, each on a kubelet's directories. There are two here: `backend.BackendSubject`
runs a class of a vendor under kdp in this process, `command.CommandSubject` runs a program in any language.

Rule: what a subject cannot do it says with `NotApplicable` and the reason. It never pretends.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import override

from .model import NotApplicable

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kdp.kubelet.paths import KubeletPaths

__all__ = ["AllocateMode", "Ending", "Instance", "Levers", "Staging", "Subject", "Usage"]

Lever = Callable[[str], object]
"""Is given a device id. What it returns does not matter, but an awaitable is awaited."""

AllocateMode = Literal["plain", "slow", "hangs", "raises"]


@attrs.frozen(kw_only=True)
class Levers:
    """What the kit needs from the hardware; each one is given a device id. They may be ``def`` or ``async def``.

    A lever returns when the hardware has changed; the plugin may take its time to notice. `heal` and `add` must undo what
    `fail` and `vanish` did, so that the next check finds the hardware as it was.

    Attributes:
        fail: Makes a device fail.
        heal: Makes a failed device work again.
        vanish: Takes a device away.
        add: Brings a device: one that vanished before (then it is given its id), or another one (then it is given "").
    """

    fail: Lever | None = None
    heal: Lever | None = None
    vanish: Lever | None = None
    add: Lever | None = None

    async def pull(self, lever: Literal["fail", "heal", "vanish", "add"], device: str) -> None:
        """Pull a lever.

        Raises:
            NotApplicable: It was not given.
        """
        function: Lever | None = getattr(self, lever)
        if function is None:
            raise NotApplicable(f"the lever {lever!r} was not given, and the kit cannot reach this plugin's hardware")
        done = function(device)
        if inspect.isawaitable(done):
            await done


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
        asks_often: It asks the pod-resources API many times a second for what it asks for once in a while, and takes the
            kubelet for one that knows all its pods.
    """

    devices: int | None = None
    numa: Sequence[Sequence[int]] | None = None
    allocate: AllocateMode = "plain"
    prefers: bool | None = None
    prepares: float | None = None
    second: bool = False
    without_inotify: bool = False
    asks_often: bool = False


@attrs.frozen(kw_only=True)
class Ending:
    """How an instance ended.

    Attributes:
        seconds: From being asked to the end.
        code: The exit code, negative for a signal; None: it is no process of its own.
        asked: Whether the kit had asked it to end.
    """

    seconds: float
    code: int | None
    asked: bool

    @override
    def __str__(self) -> str:
        """Tell it in words."""
        how = (
            ""
            if self.code is None
            else f" with exit code {self.code}"
            if self.code >= 0
            else f" by signal {-self.code}"
        )
        return f"ended{how} after {self.seconds:.2f} s" if self.asked else f"ended{how} although nobody asked it to"


@attrs.frozen(kw_only=True)
class Usage:
    """What an instance's process uses.

    Attributes:
        rss: Bytes of resident memory.
        fds: Open descriptors.
        threads: Threads.
        cpu: Seconds of processor time since its start.
    """

    rss: int
    fds: int
    threads: int
    cpu: float


class Instance(abc.ABC):
    """One running plugin."""

    ending: Ending | None = None

    @abc.abstractmethod
    async def stop(self, within: float) -> Ending:
        """Ask it to end, as the kubelet does with SIGTERM, and wait for it.

        Raises:
            TimeoutError: It has not ended within so many seconds; it is ended by force then.
        """

    @abc.abstractmethod
    async def kill(self) -> None:
        """End it without a word, as SIGKILL does; its sockets stay as dead files."""

    @abc.abstractmethod
    def said(self) -> str:
        """Return what it says of itself: its log and its state."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """Return what its process uses."""

    def is_ready(self) -> bool | None:
        """Return whether it calls itself ready; None: it has no way to say."""
        return None

    async def fail(self, device: str) -> None:
        """Make a device fail."""
        raise NotApplicable("the kit cannot make a device of this plugin fail")

    async def heal(self, device: str) -> None:
        """Make a failed device work again."""
        raise NotApplicable("the kit cannot heal a device of this plugin")

    async def vanish(self, device: str) -> None:
        """Take a device away."""
        raise NotApplicable("the kit cannot take a device away from this plugin")

    async def add(self, device: str = "") -> None:
        """Bring a device: one that vanished, or a new one."""
        raise NotApplicable("the kit cannot give this plugin another device")

    async def grow(self, count: int) -> None:
        """Give it so many devices with ids of 63 characters, while it runs."""
        raise NotApplicable("the kit cannot give this plugin tens of thousands of devices")

    def entered(self) -> int:
        """Return how many calls are inside the staged Allocate."""
        return 0

    def cancelled(self) -> int:
        """Return how many calls of the staged Allocate were cancelled."""
        return 0

    def returned(self) -> list[tuple[str, ...]]:
        """Return which devices it was told of that pods have given back, one entry each time."""
        raise NotApplicable("what this plugin is told of pods that are gone is not seen by a kubelet")

    async def fail_saying(self, device: str, message: str) -> None:
        """Make a device fail with this reason."""
        raise NotApplicable("the kit cannot choose the words with which a device of this driver fails")

    async def spoil(self, is_spoiled: bool) -> None:
        """Have a device among the others that breaks the API's rules: it has 33 attributes; or have it no more."""
        raise NotApplicable("the kit cannot give this driver a device that breaks the API's rules")

    async def jam(self, is_jammed: bool) -> None:
        """Make the hardware refuse to be given back; or let it."""
        raise NotApplicable("the kit cannot make this driver's hardware refuse to be given back")

    def touched(self) -> int | None:
        """Return how often it has prepared hardware for a claim; None: that cannot be seen."""
        return None

    def release(self) -> None:  # noqa: B027 - who cannot be staged has nothing to release
        """Let the staged Allocate behave as usual from now on."""

    def pause(self) -> bool:
        """Stop its process from running (SIGSTOP); False: it is no process of its own."""
        return False

    def resume(self) -> None:  # noqa: B027 - who cannot be paused need not be resumed
        """Let a paused process run again."""


class Subject(abc.ABC):
    """The plugin under test.

    Attributes:
        width: How many checks may run beside one another.
        has_process: Whether each instance is a process of its own.
        host_root: Where the node's root directory is for the paths that a reply names.
        can_be_staged: Whether it can be made what a `Staging` asks for.
        shares_hardware: Whether all instances see the same hardware, so that only one check at a time may change it.
        seen_at: Where instances see the kubelet's root directory, if not where it is.
        node_root: Where the node's root directory is, of which replies name the paths.
    """

    width: int = 8
    has_process: bool = False
    host_root: str = "/"
    can_be_staged: bool = True
    shares_hardware: bool = False
    seen_at: str | None = None
    node_root: str = "/"

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
