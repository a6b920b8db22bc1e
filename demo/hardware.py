"""The devices of the demo: those that this machine has, and one that can be unplugged.

Rule: what is made here is unmade here. A `Pluggable` is a context manager; whatever happens, its device is gone after
it. Nothing is done to a device of the machine but opening it and asking a question that changes nothing.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import glob
import os
import struct
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["KINDS", "PLUGGABLE", "Kind", "Pluggable", "Unavailable", "opened"]

_TUNGETFEATURES = 0x800454CF
_TUNGETIFF = 0x800454D2
_KVM_GET_API_VERSION = 0xAE00
_LOOP_CTL_ADD, _LOOP_CTL_REMOVE = 0x4C80, 0x4C81
_BLKGETSIZE64 = 0x80081272
_NODE_DEADLINE = 2.0
"""Seconds for a node to appear after its device was made, and for the kernel to let go of it."""


class Unavailable(Exception):
    """This machine, or this user, cannot have such a device; the text says why."""


@contextmanager
def opened(path: str, flags: int = os.O_RDWR) -> Generator[int]:
    """Open a device node as a container's program would, without waiting for anything."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# -- what this machine has ---------------------------------------------------------------------------------------------


def _use_tun(path: str) -> str:
    with opened(path) as descriptor:
        (features,) = struct.unpack("I", fcntl.ioctl(descriptor, _TUNGETFEATURES, bytes(4)))
    return f"the driver answers TUNGETFEATURES with {features:#x}"


def _use_kvm(path: str) -> str:
    with opened(path) as descriptor:
        return f"the driver answers KVM_GET_API_VERSION with {fcntl.ioctl(descriptor, _KVM_GET_API_VERSION)}"


def _use_random(path: str) -> str:
    with opened(path, os.O_RDONLY) as descriptor:
        return f"8 bytes read from it: {os.read(descriptor, 8).hex(' ')}"


@attrs.frozen
class Kind:
    """Devices that a machine may have.

    Attributes:
        name: The resource is ``example.com/NAME``.
        pattern: Where their nodes are.
        use: Asks a node something and says what it answered; None: it is only shown.
    """

    name: str
    pattern: str
    use: Callable[[str], str] | None = None

    @property
    def paths(self) -> list[str]:
        """The nodes that are there."""
        return sorted(glob.glob(self.pattern))


KINDS = (
    Kind("tun", "/dev/net/tun", _use_tun),
    Kind("kvm", "/dev/kvm", _use_kvm),
    Kind("hwrng", "/dev/hwrng", _use_random),
    Kind("random", "/dev/random", _use_random),
    Kind("fuse", "/dev/fuse"),
    Kind("render", "/dev/dri/renderD*"),
    Kind("nvidia", "/dev/nvidia[0-9]*"),
    Kind("infiniband", "/dev/infiniband/uverbs*"),
    Kind("video", "/dev/video*"),
    Kind("serial", "/dev/ttyUSB*"),
)
"""In the order in which the demo's first pod wants them; ``/dev/random`` is everybody's and always there."""


# -- what can be unplugged ---------------------------------------------------------------------------------------------


class Pluggable(abc.ABC):
    """A device that is plugged in on entry, can be unplugged and plugged in again, and is gone on exit.

    Attributes:
        name: The resource is ``example.com/NAME``.
        what: What it is, for the story.
        path: Its node; the same each time.
    """

    name: str
    what: str
    path: str

    def __enter__(self) -> Self:
        """Plug it in for the first time.

        Raises:
            Unavailable: It cannot be had here.
        """
        try:
            self.plug()
            deadline = time.monotonic() + _NODE_DEADLINE
            while not os.path.exists(self.path):
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self.what} was made, but its node {self.path} does not appear in this /dev")
                time.sleep(0.01)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Remove it."""
        self.remove()

    @abc.abstractmethod
    def plug(self) -> None:
        """Make the device, with the same node as before."""

    @abc.abstractmethod
    def unplug(self) -> None:
        """Take the device away."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Take away whatever is there; never fails."""

    @abc.abstractmethod
    def use(self, path: str) -> str:
        """Do something with the node that a container was given, and say what came of it."""


class Macvtap(Pluggable):
    """A virtual network port with a character device of its own, as a virtual machine uses it. Needs root."""

    name = "port"

    def __init__(self) -> None:
        tag = os.getpid()
        self._base, self._peer, self._port = f"kdpb{tag}", f"kdpc{tag}", f"kdpd{tag}"
        self._index = 100_000_000 + tag  # the node's name has it, so it must be the same each time
        self._is_made = False
        self.path = f"/dev/tap{self._index}"
        self.what = f"a macvtap port ({self._port})"

    @override
    def plug(self) -> None:
        if not self._is_made:
            _ip("link", "add", self._base, "type", "veth", "peer", "name", self._peer)
            self._is_made = True
        _ip("link", "add", "link", self._base, "name", self._port, "index", str(self._index), "type", "macvtap")
        _ip("link", "set", self._port, "up")

    @override
    def unplug(self) -> None:
        _ip("link", "del", self._port)

    @override
    def remove(self) -> None:
        if self._is_made:
            with contextlib.suppress(Unavailable):
                _ip("link", "del", self._base)  # takes its peer and the port with it

    @override
    def use(self, path: str) -> str:
        with opened(path) as descriptor:
            answer = fcntl.ioctl(descriptor, _TUNGETIFF, bytes(40))
        return f"the driver answers TUNGETIFF with {answer[:16].rstrip(bytes(1)).decode()}"


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable("there is no command 'ip'") from None
    if done.returncode:
        raise Unavailable(f"'ip {' '.join(arguments)}' says: {done.stderr.strip()}")


class Loop(Pluggable):
    """A loop device, a disk without a file behind it. Needs root."""

    name = "disk"

    def __init__(self) -> None:
        self._number: int | None = None
        self.path = "/dev/loop?"
        self.what = "a loop device"

    @override
    def plug(self) -> None:
        number = _loop_control(_LOOP_CTL_ADD, -1 if self._number is None else self._number)
        self._number = number
        self.path = f"/dev/loop{number}"

    @override
    def unplug(self) -> None:
        assert self._number is not None
        deadline = time.monotonic() + _NODE_DEADLINE
        while True:
            try:
                _loop_control(_LOOP_CTL_REMOVE, self._number)
                return
            except Unavailable:  # who watches devices, as udev, opens a new one for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @override
    def remove(self) -> None:
        if self._number is not None:
            with contextlib.suppress(Unavailable):
                self.unplug()

    @override
    def use(self, path: str) -> str:
        with opened(path, os.O_RDONLY) as descriptor:
            (size,) = struct.unpack("Q", fcntl.ioctl(descriptor, _BLKGETSIZE64, bytes(8)))
        return f"the driver answers BLKGETSIZE64 with {size}"


def _loop_control(request: int, number: int) -> int:
    try:
        with opened("/dev/loop-control") as control:
            return fcntl.ioctl(control, request, number)
    except OSError as error:
        raise Unavailable(f"/dev/loop-control: {error.strerror}") from error


class Terminal(Pluggable):
    """A pseudo terminal, which anybody may have. The kernel gives out the lowest free number."""

    name = "terminal"

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self.path = ""
        self.what = "a pseudo terminal"

    @override
    def plug(self) -> None:
        with ExitStack() as others:
            for _ in range(64):
                try:
                    ends = os.openpty()
                except OSError as error:
                    raise Unavailable(f"no pseudo terminal can be had: {error.strerror}") from error
                path = os.ttyname(ends[1])
                if self.path in ("", path):
                    self.path, self._ends = path, ends
                    return
                others.callback(_close, ends)
        raise Unavailable(f"somebody else has taken {self.path} meanwhile; start the demo again")

    @override
    def unplug(self) -> None:
        ends, self._ends = self._ends, None
        if ends is not None:
            _close(ends)

    @override
    def remove(self) -> None:
        self.unplug()

    @override
    def use(self, path: str) -> str:
        assert self._ends is not None
        with opened(path) as descriptor:
            os.write(descriptor, b"hello")
        return f"{os.read(self._ends[0], 64).decode()!r} written to it arrives at its other end"


def _close(ends: tuple[int, int]) -> None:
    for end in ends:
        os.close(end)


PLUGGABLE: dict[str, Callable[[], Pluggable]] = {"macvtap": Macvtap, "loop": Loop, "pty": Terminal}
"""By the value of ``--device``, the best first."""
