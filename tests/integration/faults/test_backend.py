"""A backend that raises, hangs or returns nonsense: nothing is lost, and one sentence says what is wrong."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.faults import FaultyKubelet
from typing_extensions import override

import kdp
from kdp.deviceplugin.manager import PluginManager

from ..deviceplugin.helpers import QUICK, RESOURCE, Block, Widgets, connected, lists, registers, running, until
from .catalogue import Fault
from .conftest import Said, Saw, state_of

STALE = 0.3


class Failing(Widgets):
    """Discovers well until ``trouble`` is set; then that is called instead."""

    stale_after = STALE

    def __init__(self, *devices: kdp.Device | str, resource: str | None = RESOURCE) -> None:
        super().__init__(*devices, resource=resource)
        self.trouble: Callable[[], Any] | None = None

    @override
    def discover(self) -> Iterable[kdp.Device]:
        found = super().discover()
        return found if self.trouble is None else self.trouble()


def _raise() -> None:
    raise RuntimeError("the vendor's secret is 42")


DISCOVERIES: dict[Fault, tuple[Callable[[], Any], str]] = {
    Fault.DISCOVER_RAISES: (_raise, "raised RuntimeError"),
    Fault.DISCOVER_DUPLICATES: (lambda: [kdp.Device(id="w0")] * 2, "twice"),
    Fault.DISCOVER_LONG_ID: (lambda: [kdp.Device(id="w" * 64)], "63 characters"),
    Fault.DISCOVER_NO_DEVICE: (lambda: ["w0"], "must be a kdp.Device"),
    Fault.DISCOVER_NO_LIST: (lambda: 7, "iterable"),
}


@pytest.mark.parametrize("fault", DISCOVERIES, ids=lambda fault: fault.name)
async def test_a_failing_discovery_keeps_the_devices_and_then_marks_them(
    k: FaultyKubelet, saw: Saw, said: Said, fault: Fault
) -> None:
    backend = Failing("w0", "w1")
    async with connected(k, backend) as manager:
        backend.trouble, words = DISCOVERIES[fault]
        manager.rescan()
        sentence = await said(words, level=logging.ERROR) if fault is not Fault.DISCOVER_RAISES else ""
        sentence = sentence or await said("raised RuntimeError")
        assert "secret" not in sentence
        assert k.allocatable() == {RESOURCE: 2}  # the last known list is in force
        await k.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
        # What goes on is not said again.
        again = backend.discoveries
        manager.rescan()
        await until(lambda: backend.discoveries > again)
        assert await said(sentence) == sentence
        saw(fault, sentence, state_of(manager))

        backend.trouble = None
        manager.rescan()
        await k.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})
        assert len(registers(k)) == 1


async def test_a_hanging_discovery_keeps_the_devices_and_then_marks_them(
    k: FaultyKubelet, saw: Saw, said: Said, block: Callable[[], Block], caplog: pytest.LogCaptureFixture
) -> None:
    backend, stuck = Failing("w0", "w1"), block()
    async with connected(k, backend, deadlines=QUICK, poll_interval=0.05) as manager:
        backend.trouble = stuck
        sentence = await said("did not return within", level=logging.ERROR)
        await k.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
        saw(Fault.DISCOVER_HANGS, sentence, state_of(manager))
        assert len(registers(k)) == 1

        # It is not called again while it hangs, and what goes on is not said again.
        lines, count = len(caplog.records), backend.discoveries
        manager.rescan()
        await _deadline_of(manager)
        assert backend.discoveries == count
        assert [r.getMessage() for r in caplog.records[lines:]] == []

        backend.trouble = None
        stuck.release()
        await k.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 2})


async def _deadline_of(manager: PluginManager) -> None:
    """Let one more discovery meet its deadline; its sign of life is that the same state is published again."""
    [supervisor] = manager._supervisors
    await supervisor.discovery.after(supervisor.discovery.version)


async def test_one_id_in_two_backends(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    may_discover = threading.Event()

    class Gadgets(Widgets):
        @override
        def discover(self) -> Iterable[kdp.Device]:
            may_discover.wait(10)
            return super().discover()

    first, second = Widgets("w0", "w1"), Gadgets("w0", "g1", resource="example.com/gadget")
    async with running(k, first, second, poll_interval=0.05) as manager:
        await k.until(allocatable={RESOURCE: 2})
        may_discover.set()
        sentence = await said("is also one of", level=logging.ERROR)
        saw(Fault.DISCOVER_SHARED_ID, sentence, state_of(manager, "example.com/gadget"))
        assert k.allocatable() == {RESOURCE: 2}
        first.devices.pop(0)
        await k.until(allocatable={RESOURCE: 1, "example.com/gadget": 2}, capacity={RESOURCE: 1})


async def test_one_id_in_two_backends_that_discover_at_once(k: FaultyKubelet, said: Said) -> None:
    """One of both keeps the id; which, is chance."""
    both = threading.Barrier(2)

    class Hasty(Widgets):
        @override
        def discover(self) -> Iterable[kdp.Device]:
            if not self.discoveries:
                both.wait(10)
            return super().discover()

    async with running(k, Hasty("w0"), Hasty("w0", resource="example.com/other"), poll_interval=0.02) as manager:
        await said("is also one of", level=logging.ERROR)
        await until(lambda: [problem is None for _, problem in manager.status().backends].count(True) == 1)
        await k.until(lambda: list(k.allocatable().values()) == [1])
        await until(lambda: sorted(s.state for s in manager.status().resources.values()) == ["connected", "waiting"])


@pytest.mark.slow
async def test_more_devices_than_a_list_can_hold(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    """Scenario 54: the list of before stays in force."""
    backend = Widgets("w0")
    async with connected(k, backend) as manager:
        template = kdp.Device(id="x")
        backend.devices[:] = [attrs.evolve(template, id=f"{i:063}", unit="") for i in range(60_000)]
        manager.rescan()
        sentence = await said("fit", level=logging.ERROR)
        saw(Fault.DISCOVER_TOO_MANY, sentence, state_of(manager))
        assert k.capacity() == {RESOURCE: 1}
        assert len(lists(k)) == 1
        del backend.devices[10:]
        manager.rescan()
        await k.until(allocatable={RESOURCE: 10})


async def test_too_many_devices_from_the_start(k: FaultyKubelet, said: Said) -> None:
    backend = Widgets()
    backend.devices = [kdp.Device(id=f"{i:063}") for i in range(60_000)]
    async with running(k, backend) as manager:
        await said("fit", level=logging.ERROR)
        await until(lambda: "fit" in str(manager.status().resources[RESOURCE].reason))
        assert not manager.is_ready
        assert not registers(k)
        del backend.devices[10:]
        manager.rescan()
        await k.until(allocatable={RESOURCE: 10})


async def test_not_ready_marks_the_devices_until_it_is_opened_again(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    backend = Failing("w0", "w1")

    def away() -> None:
        raise kdp.NotReady("the widget driver is not loaded")

    async with connected(k, backend) as manager:
        backend.trouble = away
        manager.rescan()
        sentence = await said("is not ready")
        await k.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
        saw(Fault.NOT_READY, sentence, state_of(manager))
        backend.trouble = None
        await k.until(allocatable={RESOURCE: 2})
        assert len(registers(k)) == 1


async def test_not_ready_from_the_start_registers_nothing(k: FaultyKubelet, said: Said) -> None:
    class Late(Widgets):
        loaded = False

        @override
        def open(self) -> None:
            if not self.loaded:
                raise kdp.NotReady("the widget driver is not loaded")

    backend = Late("w0")
    async with running(k, backend) as manager:
        await said("not loaded")
        assert not manager.is_ready
        assert not registers(k)
        backend.loaded = True
        await k.until(allocatable={RESOURCE: 1})


async def test_open_raises(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    class Broken(Widgets):
        closed = opened = 0

        @override
        def open(self) -> None:
            self.opened += 1
            if self.opened < 3:
                raise OSError("the vendor's secret is 42")

        @override
        def close(self) -> None:
            self.closed += 1

    backend = Broken("w0")
    async with running(k, backend) as manager:
        sentence = await said("is not ready")
        assert "secret" not in sentence
        saw(Fault.OPEN_RAISES, sentence, state_of(manager))
        await k.until(allocatable={RESOURCE: 1})
        assert backend.closed == 0  # a failed open is not closed
    assert (backend.opened, backend.closed) == (3, 1)


async def test_open_hangs(k: FaultyKubelet, saw: Saw, said: Said, block: Callable[[], Block]) -> None:
    stuck = block()

    class Stuck(Widgets):
        @override
        def open(self) -> None:
            stuck()

    async with running(k, Stuck("w0"), deadlines=QUICK) as manager:
        sentence = await said("open() of Stuck did not return")
        saw(Fault.OPEN_HANGS, sentence, state_of(manager))
        stuck.release()
        await k.until(allocatable={RESOURCE: 1})


async def test_watch_raises(k: FaultyKubelet, saw: Saw, said: Said) -> None:
    class Broken(Widgets):
        watched = 0

        @override
        def watch(self, report: kdp.Reporter) -> None:
            self.watched += 1
            if self.watched < 2:
                raise OSError("the vendor's secret is 42")
            super().watch(report)

    backend = Broken("w0")
    async with connected(k, backend) as manager:
        sentence = await said("calling it again")
        assert "secret" not in sentence
        saw(Fault.WATCH_RAISES, sentence, state_of(manager))
        (await backend.report()).fault("w0", "XID 79")
        await k.until(allocatable={RESOURCE: 0})


# -- device nodes ------------------------------------------------------------------------------------------------------


def _with_node(path: Path) -> kdp.Device:
    return kdp.Device(id="w0", edits=kdp.ContainerEdits.of_node(path))


async def test_a_device_node_that_does_not_exist(k: FaultyKubelet, saw: Saw, said: Said, tmp_path: Path) -> None:
    node = tmp_path / "widget0"
    async with connected(k, Widgets(_with_node(node), "w1")) as manager:
        sentence = await said("is gone")
        assert k.capacity() == {RESOURCE: 2}
        saw(Fault.NODE_GONE, sentence, state_of(manager))
        node.symlink_to("/dev/null")  # no poll, no report: the directory is watched
        await k.until(allocatable={RESOURCE: 2})
        node.unlink()
        await k.until(allocatable={RESOURCE: 1})


async def test_a_file_where_a_device_node_should_be(k: FaultyKubelet, saw: Saw, said: Said, tmp_path: Path) -> None:
    node = tmp_path / "widget0"
    node.touch()
    async with connected(k, Widgets(_with_node(node))) as manager:
        sentence = await said("is no device node")
        assert k.capacity() == {RESOURCE: 1}
        saw(Fault.NODE_NO_DEVICE, sentence, state_of(manager))
        new = tmp_path / "new"
        new.symlink_to("/dev/null")
        os.rename(new, node)
        await k.until(allocatable={RESOURCE: 1})


async def test_a_device_node_that_is_a_link(k: FaultyKubelet, saw: Saw, tmp_path: Path) -> None:
    """It stays a link, which the runtime follows at each start; in the container it keeps its name, too."""
    node = tmp_path / "widget0"
    node.symlink_to("/dev/null")
    async with connected(k, Widgets(_with_node(node))) as manager:
        [reply] = await k.plugin(RESOURCE).allocate(["w0"])
        [spec] = reply.devices
        assert (spec.container_path, spec.host_path, spec.permissions) == (str(node), str(node), "rw")
        saw(
            Fault.NODE_LINK,
            f"{spec.container_path} in the container is what {spec.host_path} leads to at each start",
            state_of(manager),
        )


async def test_a_link_to_itself_is_a_node_that_is_gone(k: FaultyKubelet, said: Said, tmp_path: Path) -> None:
    node = tmp_path / "widget0"
    node.symlink_to(node)
    async with connected(k, Widgets(_with_node(node))):
        await said("is gone")
        assert (k.capacity(), k.allocatable()) == ({RESOURCE: 1}, {RESOURCE: 0})
