"""Correct but unusual device plugins, and plugins that a check must still refuse.

A row is a class. ``CORRECT`` passes every check that applies, as a device plugin and as a DRA driver. ``SABOTAGED``
fails the check that once judged a correct plugin wrongly, so that "not applicable" hides nothing.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import anyio
from typing_extensions import override

import kdp
import kdp_example_minimal
import kdp_fpga
from kdp.allocation import Sharing, share
from kdp.hardware import Host
from kdp.testing import SysfsTree
from kdp_testkit.conformance import Levers

__all__ = ["CORRECT", "SABOTAGED", "Correct", "Sabotaged"]

BOARDS: Final = Path(__file__).parents[2] / "examples/fpga/src/kdp_fpga/recorded_node.tar.gz"
"""Two boards with three ports."""


class Row(kdp.DeviceBackend):
    """Three devices, each with a variable of its own.

    Attributes:
        count: How many devices it has.
        takes_node: Whether it reads the node's files below the test's directory instead of this machine's.
    """

    resource = "example.com/widget"
    poll_interval: float | None = None
    count: ClassVar[int] = 3
    takes_node: ClassVar[bool] = False

    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        """Return a new object; ``node`` is the root of its node."""
        return cls()

    @classmethod
    def prepare(cls, node: Path) -> None:
        """Make the node's files once for all objects."""

    @classmethod
    def settings(cls) -> Mapping[str, Any]:
        """Return what a DRA driver is told besides."""
        return {}

    @classmethod
    def levers(cls, node: Path) -> Levers | None:
        """Return the levers of its hardware; None: those of the kit."""
        return None

    @override
    def discover(self) -> Iterable[kdp.Device] | Awaitable[Iterable[kdp.Device]]:
        return [_device(f"w{number}") for number in range(self.count)]


RowT = TypeVar("RowT", bound=Row)


def _device(id: str, **more: Any) -> kdp.Device:
    return kdp.Device(id=id, edits=kdp.ContainerEdits(env={"WIDGET": id}), **more)


class Correct(Row):
    """A plugin that does nothing wrong.

    Attributes:
        is_for_both: Whether it is a good DRA driver as well.
    """

    is_for_both: ClassVar[bool] = True
    joined_env: Mapping[str, str] = {"WIDGET": ","}


class Sabotaged(Row):
    """A plugin with one fault.

    Attributes:
        check: The check that must find it.
        words: What the check says.
        is_driver: Whether it is judged as a DRA driver.
    """

    check: ClassVar[int]
    words: ClassVar[str]
    is_driver: ClassVar[bool] = False
    joined_env: Mapping[str, str] = {"WIDGET": ","}


class RefusesTwo(Correct):
    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if len(devices) > 1:
            raise kdp.AllocationError("a container can have one widget only; ask for 1")
        return devices.edits()


class TokenInEachReply(Correct):
    """Each container gets a token of its own."""

    joined_env: Mapping[str, str] = {"WIDGETS": ",", "TOKEN": ","}

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids), "TOKEN": secrets.token_hex(4)})


class OneDevice(Correct):
    count = 1


class IdsOfEveryForm(Correct):
    """Ids with each kind of character that the kubelet takes."""

    @override
    def discover(self) -> list[kdp.Device]:
        ids = ("SN0", "0000:3b:00.0", "mlx5_0/3", "a--b", "-x-", "{id}", "É£", "'\"`$", "%2F", "a,b", "L" * 63, "0")
        return [_device(id) for id in ids]


class NoNuma(Correct):
    """Every second device has no NUMA node."""

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"w{number}", numa_nodes=[-1] if number % 2 else [0]) for number in range(4)]


class EmptyAtFirst(Correct):
    """The node's driver is loaded a moment after the plugin has started."""

    poll_interval = 0.5
    loaded_at: ClassVar[float]

    @override
    @classmethod
    def prepare(cls, node: Path) -> None:
        cls.loaded_at = time.monotonic() + 1.5

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"w{number}") for number in range(3 if time.monotonic() > self.loaded_at else 0)]


class EmptyAtEachStart(Correct):
    """It needs a moment to find its cards. A DRA driver must not: its pool would be empty after each restart."""

    poll_interval = 0.5
    is_for_both = False

    def __init__(self) -> None:
        self.began = time.monotonic()

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"w{number}") for number in range(3 if time.monotonic() > self.began + 1.0 else 0)]


class SlowAllocate(Correct):
    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        await anyio.sleep(1.0)
        return devices.edits()


class BlockingAllocate(Correct):
    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        time.sleep(1.0)
        return devices.edits()


class ReleasesSlowly(Correct):
    """A cleanup takes longer than an Unprepare waits for it, so that the device is withheld for a moment."""

    @override
    def released(self, devices: kdp.Allocation) -> None:
        time.sleep(1.5)


class LongName(Correct):
    """A driver whose name is longer than those of most."""

    @override
    @classmethod
    def settings(cls) -> Mapping[str, Any]:
        return {"name": "driver-of-our-widgets.hardware.example.com"}


class RecordedNode(Correct):
    """Boards of a node that was recorded: their device nodes are not on this machine."""

    takes_node = True

    @override
    @classmethod
    def prepare(cls, node: Path) -> None:
        SysfsTree(node, snapshot=BOARDS)

    @override
    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        return kdp_fpga.Fpga(Host(node))

    @override
    @classmethod
    def settings(cls) -> Mapping[str, Any]:
        return {"name": "fpga.example.com"}


class SharedDevices(Correct):
    """In DRA, several claims share each of them."""

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"w{number}", shareable=True, capacity={"memory": 8}) for number in range(3)]


class OneReplicaForEach(Correct):
    """A container may have one replica only."""

    @override
    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        return share(kdp_example_minimal.Fuse(3), Sharing(replicas=4, limit=1))


class OneCardShared(Correct):
    """All replicas are of one card, and fail with it."""

    count = 1

    @override
    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        return share(cls(), Sharing(replicas=4))


class Linked(Correct):
    policy = "linked"

    @override
    def links(self, devices: Sequence[kdp.Device]) -> Mapping[tuple[str, str], float]:
        return {("w0", "w1"): 2.0, ("w1", "w2"): 1.0}


class SeveralResources(Correct):
    resources = ("example.com/gadget", "example.com/Gizmo_2")

    @override
    def discover(self) -> list[kdp.Device]:
        return [
            *(_device(f"w{number}") for number in range(3)),
            *(_device(f"g{number}", resource="example.com/gadget") for number in range(2)),
        ]


class Scrubs(Correct):
    """No container gets a device before the pod before it is cleaned up."""

    release_policy = "scrub"

    @override
    def released(self, devices: kdp.Allocation) -> None:
        time.sleep(0.1)


class PrefersNothing(Correct):
    """It has an opinion on pairs only."""

    @override
    def prefer(self, request: kdp.PreferRequest) -> Sequence[str] | None:
        return ["w0", "w1"] if request.size == 2 and not request.must_include and len(request.available) > 2 else None


class PairsOnly(Correct):
    """Two devices of one card go together, and devices of two cards never do."""

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"{port}-{card}", unit=f"card{card}") for port in "ab" for card in range(4)]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if len({device.unit for device in devices}) > 1:
            raise kdp.AllocationError("the ports of a container must be of one card")
        return devices.edits()


class GivesNothing(Correct):
    """Devices that are permissions to use a service: a container needs nothing for them."""

    @override
    def discover(self) -> list[kdp.Device]:
        return kdp.Device.counted("seat", 5)


class LooksSeldom(Correct):
    """It polls its hardware, which is files here, and no faster than every two seconds."""

    poll_interval = 2.0
    takes_node = True

    def __init__(self, node: Path) -> None:
        self.node = node

    @override
    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        return cls(node)

    @override
    @classmethod
    def prepare(cls, node: Path) -> None:
        for number in range(3):
            (node / f"w{number}").write_text("ok")

    @override
    @classmethod
    def levers(cls, node: Path) -> Levers:
        return Levers(
            fail=lambda device: (node / device).write_text("broken"),
            heal=lambda device: (node / device).write_text("ok"),
            vanish=lambda device: (node / device).unlink(),
            add=lambda device: (node / (device or "new")).write_text("ok"),
        )

    @override
    def discover(self) -> list[kdp.Device]:
        healths = {path.name: path.read_text() == "ok" for path in self.node.iterdir()}
        sick = kdp.Health.unhealthy("broken")
        return [_device(name, health=kdp.Health.healthy() if ok else sick) for name, ok in sorted(healths.items())]


class OneIsSick(Correct):
    @override
    def discover(self) -> list[kdp.Device]:
        return [_device("w0", health=kdp.Health.unhealthy("no link")), _device("w1"), _device("w2")]


class BreaksAtTwo(Sabotaged):
    check, words = 34, "Allocate of w0 and w1 failed"

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return kdp.ContainerEdits(env={"FIRST": devices.ids[0], "REST": ("none",)[len(devices) - 1]})


class _WithFile(Sabotaged):
    """Its containers get a directory of a recorded node, which only the plugin makes."""

    takes_node = True

    def __init__(self, node: Path) -> None:
        self.made_here = Host(node).path("/run/widgets")

    @override
    @classmethod
    def prepare(cls, node: Path) -> None:
        SysfsTree(node, snapshot=BOARDS)

    @override
    @classmethod
    def made(cls, node: Path) -> kdp.DeviceBackend:
        return cls(node)

    @override
    def close(self) -> None:
        shutil.rmtree(self.made_here, ignore_errors=True)

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.made_here.mkdir(parents=True, exist_ok=True)
        mount = kdp.Mount(host_path="/run/widgets", container_path="/run/widgets")
        return devices.edits().adding(mounts=[mount])


class RemovesItsFile(_WithFile):
    check, words = 45, "after the plugin ended, these were gone: /run/widgets"


class MakesItsFileLate(_WithFile):
    check, words = 46, "at Register these did not exist: /run/widgets"


class _NamesAnew(Sabotaged):
    """It numbers its devices on from where the process before has ended."""

    starts: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        self.start = next(self.starts)

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device(f"start{self.start}-w{number}") for number in range(self.count)]


class NamesAnewAtBoot(_NamesAnew):
    check, words = 46, "after the next start these are not Healthy: start"


class NamesAnewInAnUpdate(_NamesAnew):
    check, words = 63, "the second instance has start"


def _nothing(device: str) -> None:
    """Change nothing."""


class _Deaf(Sabotaged):
    """It does not look at its hardware again, and its ids are no DNS labels."""

    is_driver = True

    @override
    @classmethod
    def levers(cls, node: Path) -> Levers:
        return Levers(fail=_nothing, heal=_nothing, vanish=_nothing, add=_nothing)

    @override
    def discover(self) -> list[kdp.Device]:
        return [_device("SN0"), _device("0000:3b:00.0")]


class KeepsTheVanished(_Deaf):
    check, words = 38, "the devices vanished, and are still published"


class WritesNoTaint(_Deaf):
    check, words = 40, "no slice was written after a device failed"


class ReportsNoFault(_Deaf):
    check, words = 52, "the kubelet got no report that the device failed"


def _rows(base: type[RowT]) -> tuple[type[RowT], ...]:
    """Return the classes of a table; one whose name begins with ``_`` is what several rows share."""
    found = [each for row in base.__subclasses__() for each in (row, *row.__subclasses__())]
    return tuple(row for row in found if not row.__name__.startswith("_"))


CORRECT: Final = _rows(Correct)
SABOTAGED: Final = _rows(Sabotaged)
