"""`Instance`: one running plugin or driver, as the checks see it, and what the kit can do to its hardware.

Rule: what an instance cannot do it says with `NotApplicable` and the reason. It never pretends.
"""

from __future__ import annotations

import abc
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import attrs
from typing_extensions import override

from .checks import NotApplicable

Lever = Callable[..., object]
"""Is given a device id. What it returns does not matter, but an awaitable is awaited."""

LeverName = Literal["fail", "heal", "vanish", "add"]


@attrs.frozen(kw_only=True)
class Levers:
    """What the kit needs from the hardware; each one is given a device id. They may be ``def`` or ``async def``.

    A lever returns when the hardware has changed; the plugin may take its time to notice. One with a parameter
    ``resource`` is given the name of the resource as well, or "" as a DRA driver has none.

    Checks that pull levers run one after the other. After each of them the kit pulls `heal` and `add` for what `fail`
    and `vanish` did, so that the next check finds the hardware as it was.

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


class SharedLevers:
    """The levers of hardware that all instances see, and what is to be undone of what they did.

    Args:
        levers: The vendor's.

    Attributes:
        levers: The vendor's.
        resource: Which resource is judged; "": it is not known, or there is none.
    """

    def __init__(self, levers: Levers | None) -> None:
        self.levers = levers or Levers()
        self.resource = ""
        self._failed: set[str] = set()
        self._gone: set[str] = set()

    async def pull(self, lever: LeverName, device: str) -> None:
        """Pull a lever.

        Raises:
            NotApplicable: It was not given.
        """
        function: Lever | None = getattr(self.levers, lever)
        if function is None:
            raise NotApplicable(f"the lever {lever!r} was not given, and the kit cannot reach this plugin's hardware")
        if lever == "fail":
            self._failed.add(device)
        elif lever == "vanish":
            self._gone.add(device)
        takes_resource = "resource" in inspect.signature(function).parameters
        done = function(device, resource=self.resource) if takes_resource else function(device)
        if inspect.isawaitable(done):
            await done
        if lever == "heal":
            self._failed.discard(device)
        elif lever == "add":
            self._gone.discard(device)

    async def undo(self) -> None:
        """Bring back what vanished, and heal what failed, as far as there are levers for it."""
        for device in sorted(self._gone if self.levers.add else ()):
            await self.pull("add", device)
        for device in sorted(self._failed if self.levers.heal else ()):
            await self.pull("heal", device)


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


_LEAST_TIME = 0.2
"""Share of the time that a thread could run at least: of one that could hardly run, little is known."""


@attrs.frozen(kw_only=True)
class Usage:
    """What an instance's process uses.

    Attributes:
        rss: Bytes of resident memory.
        fds: Open descriptors.
        threads: Threads.
        cpu: Seconds of processor time since its start, those of ended threads counted.
        of_threads: Seconds that each thread has run, and has waited for a processor, by its id.
    """

    rss: int
    fds: int
    threads: int
    cpu: float = 0.0
    of_threads: Mapping[int, tuple[float, float]] = attrs.field(factory=dict[int, tuple[float, float]])

    def share_since(self, before: Usage, seconds: float) -> float:
        """Return the share of a processor that the process has used.

        Seconds in which a thread waited for a processor do not count: on a busy machine a thread that never rests
        gets little of one.

        Args:
            before: Its usage at the beginning.
            seconds: Seconds since then.
        """
        shares: list[float] = []
        for thread, (ran, waited) in self.of_threads.items():
            ran_before, waited_before = before.of_threads.get(thread, (0.0, 0.0))
            used = max(0.0, ran - ran_before)  # a new thread may have the id of an ended one
            shares.append(used / max(seconds - (waited - waited_before), used, seconds * _LEAST_TIME))
        return max(sum(shares), (self.cpu - before.cpu) / seconds)

    @classmethod
    def of_process(cls, pid: int) -> Usage:
        """Return what a process uses, from /proc."""
        with open(f"/proc/{pid}/statm") as statm:
            rss = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        of_threads: dict[int, tuple[float, float]] = {}
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # it has just ended
                with open(f"/proc/{pid}/task/{name}/schedstat") as schedstat:
                    ran, waited, _ = map(int, schedstat.read().split())
                of_threads[int(name)] = ran / 1e9, waited / 1e9
        return cls(
            rss=rss,
            fds=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields[17]),
            cpu=ticks / os.sysconf("SC_CLK_TCK"),
            of_threads=of_threads or {pid: (ticks / os.sysconf("SC_CLK_TCK"), 0.0)},  # a kernel without this file
        )


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
        """End it abruptly, as SIGKILL does; its sockets stay as dead files."""

    @abc.abstractmethod
    def output(self) -> str:
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

    def mates(self, device: str) -> set[str] | None:
        """Return the devices that fail with this one because they are one unit; None: nobody knows."""
        return None

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
        raise NotApplicable("a kubelet cannot see what this plugin does when a pod is gone")

    async def fail_saying(self, device: str, message: str) -> None:
        """Make a device fail with this reason."""
        raise NotApplicable("the kit cannot choose the words with which a device of this driver fails")

    async def add_invalid_device(self, is_spoiled: bool) -> None:
        """Have a device among the others that breaks the API's rules: it has 33 attributes; or have it no more."""
        raise NotApplicable("the kit cannot give this driver a device that breaks the API's rules")

    async def block_release(self, is_jammed: bool) -> None:
        """Make the hardware refuse to be given back; or let it."""
        raise NotApplicable("the kit cannot make this driver's hardware refuse to be given back")

    def preparations(self) -> int | None:
        """Return how often it has prepared hardware for a claim; None: that cannot be seen."""
        return None

    def release(self) -> None:  # noqa: B027 - who cannot be staged has nothing to release
        """Let the staged Allocate behave as usual from now on."""

    def pause(self) -> bool:
        """Stop its process from running (SIGSTOP); False: it is no process of its own."""
        return False

    def resume(self) -> None:  # noqa: B027 - who cannot be paused need not be resumed
        """Let a paused process run again."""
