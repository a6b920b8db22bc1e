"""Health from the vendor's word to the kubelet's list. No poll helps: it comes once an hour. Verdicts are generous."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin import inventory
from kdp.supervision import supervisor
from kdp.supervision.health import HealthChange
from kdp.supervision.reporter import PAUSE
from kdp.testing import SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .helpers import QUICK, RESOURCE, Block, Figure, Widgets, connected, lists, registers, until

EAGER = kdp.HealthPolicy(recheck=0.05)
"""The default thresholds, with a shorter pause until the next look."""


def replicas(card: str, count: int, health: kdp.Health | None = None) -> list[kdp.Device]:
    health = health or kdp.Health.healthy()
    return [kdp.Device(id=f"{card}-replica-{i}", unit=card, health=health) for i in range(count)]


def unhealthy(kubelet: SimulatedKubelet) -> set[str]:
    return {i for i, listed in kubelet.devices(RESOURCE).items() if listed.health != "Healthy"}


def spoken(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [line for record in caplog.records if words in (line := record.getMessage())]


async def test_a_fault_of_a_card_reaches_the_kubelet_for_all_its_replicas(
    kubelet: SimulatedKubelet, figure: Figure
) -> None:
    backend = Widgets(*replicas("card-0", 50), *replicas("card-1", 50))
    async with connected(kubelet, backend):
        report = await backend.report()
        await until(lambda: time.monotonic() > lists(kubelet)[-1].time + inventory.MIN_GAP)
        before, began = len(lists(kubelet)), time.monotonic()
        report.fault("card-1", "XID 79: it has fallen off the bus", kind="xid")
        await kubelet.until(allocatable={RESOURCE: 50}, capacity={RESOURCE: 100})
        took = lists(kubelet)[-1].time - began
        assert unhealthy(kubelet) == {f"card-1-replica-{i}" for i in range(50)}
        assert len(lists(kubelet)) == before + 1  # all of them in one list
        figure("a card's fault -> list with its 50 replicas", took * 1e3, "ms")
        assert took < PATIENCE


async def test_backends_that_open_together_do_not_poll_in_step(
    kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two discoveries at once wait for one another at each call of the kernel, and cost twice as much."""
    drawn: list[tuple[float, ...]] = []

    def uniform(*bounds: float) -> float:
        drawn.append(bounds)
        return 0.0

    monkeypatch.setattr(supervisor, "random", SimpleNamespace(uniform=uniform))
    backend = Widgets("w0")
    async with connected(kubelet, backend):
        await until(lambda: backend.discoveries == 2)  # the first rest has some other length, here none
        assert drawn == [(0.5, 1.0)]
        report = await backend.report()
        report.rescan()
        await until(lambda: backend.discoveries == 3)
        assert len(drawn) == 1


async def test_what_discovery_calls_dead_needs_three_good_words(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Widgets("w0", "w1")
    backend.health_policy = EAGER
    async with connected(kubelet, backend) as manager:
        well = backend.devices[0]
        backend.devices[0] = kdp.Device(id="w0", health=kdp.Health.unhealthy("fan failed"))
        manager.rescan()
        await kubelet.until(allocatable={RESOURCE: 1})
        seen = backend.discoveries
        backend.devices[0] = well
        manager.rescan()
        # Nobody asks for the second and the third look but the machine itself.
        await kubelet.until(allocatable={RESOURCE: 2})
        assert backend.discoveries >= seen + 3
    assert [line.partition("w0 is now ")[2] for line in spoken(caplog, "w0 is now")] == [
        "Unhealthy (fan failed)",
        "Unhealthy (recovering, it needs 3 good probes in a row; it was: fan failed)",
        "Healthy",
    ]


async def test_an_observer_that_raises_harms_nobody(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(change: HealthChange) -> None:
        raise RuntimeError("no metrics today")

    backend = Widgets("w0", "w1")
    async with connected(kubelet, backend, observe=observe):
        (await backend.report()).fault("w0", "XID 79")
        await kubelet.until(allocatable={RESOURCE: 1})
        assert spoken(caplog, "the observer of health failed; going on")


@pytest.mark.parametrize("hook", ["discover", "allocate"])
async def test_a_hook_that_hangs_for_ever_stands_alone(
    kubelet: SimulatedKubelet, block: Callable[[], Block], hook: str
) -> None:
    """A thread that nobody can wake: the list, the Allocate of others and the stop do not wait for it."""
    stuck = block()

    class Stuck(Widgets):
        stale_after = 3600
        hangs = False

        @override
        def discover(self) -> Iterable[kdp.Device]:
            if hook == "discover" and self.hangs:
                stuck()
            return super().discover()

        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            if hook == "allocate":
                stuck()
            return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    backend, other = Stuck("w0", "w1"), Widgets("o0", resource="example.com/other")
    began = 0.0
    async with connected(kubelet, backend, other, deadlines=QUICK) as manager:
        report = await backend.report()
        backend.hangs = True
        pending = None
        if hook == "allocate":
            pending = asyncio.ensure_future(kubelet.plugin(RESOURCE).allocate(["w0"]))
        else:
            manager.rescan()
        await until(lambda: stuck.is_entered)
        threads = threading.active_count()
        for _ in range(20):  # however often the hook is asked for
            manager.rescan()
            await anyio.sleep(0.01)

        report.fault("w1", "XID 79", kind="xid")  # the list
        await kubelet.until(allocatable={RESOURCE: 1, "example.com/other": 1})
        await kubelet.plugin("example.com/other").allocate(["o0"])  # the Allocate of others
        if hook != "allocate":
            [reply] = await kubelet.plugin(RESOURCE).allocate(["w0"])
            assert dict(reply.envs) == {"WIDGETS": "w0"}
        if pending is not None:
            with pytest.raises(Exception, match="did not return within"):
                await pending
        assert threading.active_count() <= threads + 2  # the others' own, at their first call; none for the hook
        assert not stuck.is_over
        assert len(registers(kubelet)) == 1
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE  # the stop
    assert not stuck.is_over


async def test_a_device_in_quarantine_is_silent_until_it_leaves(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 flaps with a new reason each left 25 warnings."""
    monkeypatch.setattr("kdp.supervision.change_log.PERIOD", 0.0)  # no line is left out because of their number
    backend = Widgets("w0")
    async with connected(kubelet, backend, health_policy={"flap_window": 30, "hold_down": 0.5, "hold_down_max": 0.5}):
        report = await backend.report()
        for number in range(12):
            report.fault("w0", f"XID {number}", kind="xid")
            await anyio.sleep(1.2 * PAUSE)  # what comes sooner is taken together
            report.clear("w0", kind="xid")
            await anyio.sleep(1.2 * PAUSE)
        await until(lambda: len([line for line in spoken(caplog, "w0 is now") if line.endswith("Healthy")]) == 3)
    lines = spoken(caplog, "device w0 is now")
    assert len(lines) == 6, lines
    assert "quarantined" in lines[4]
    assert lines[5].endswith("Healthy")


async def test_a_fault_of_a_name_that_no_device_has_changed_nothing_in_silence(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Widgets("w0", "w1")
    async with connected(kubelet, backend):
        report = await backend.report()
        report.fault("w0", "XID 79")
        report.rescan()
        await kubelet.until(allocatable={RESOURCE: 1})
        assert "no device has this id" not in caplog.text
        report.fault("wO", "XID 79")
        report.rescan()
        said = "Widgets: watch has reported a fault of wO, and no device has this id or unit: the fault counts"
        await until(lambda: said in caplog.text)
        report.rescan()
    assert caplog.text.count("no device has this id") == 1
