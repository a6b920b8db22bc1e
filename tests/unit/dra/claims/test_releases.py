"""Releases that outlive Unprepare: a pod's end waits for no hardware, and no claim gets a device before its release."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp.dra.claims import prepare, releases
from kdp.dra.claims.plan import plan_of
from kdp.dra.render import tainted
from kdp.errors import ClaimError
from kdp.model.claims import Claim
from kdp.supervision.claimed import claimed_devices
from kdp.supervision.supervisor import Deadlines

from .claim_objects import DRIVER, POOL, claim, claim_object, result
from .claims_world import Widgets, World, running

FAILED = "released() of Widgets raised RuntimeError; the plugin's log has the details"


class Absent(Widgets):
    """Its driver can be unloaded."""

    poll_interval = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.is_loaded = True

    @override
    def open(self) -> None:
        self._check()

    @override
    def discover(self) -> list[kdp.Device]:
        self._check()
        return self.devices

    def _check(self) -> None:
        if not self.is_loaded:
            raise kdp.NotReady("the kernel module acme is not loaded")


@pytest.fixture
def backend() -> Widgets:
    return Widgets()


@pytest.fixture
async def world(tmp_path: Path, backend: Widgets, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(releases, "FIRST_PAUSE", 0.01)
    async with running(tmp_path, backend, deadlines=Deadlines(released=5.0)) as found:
        yield found


async def prepared(world: World, number: int = 0, *devices: str, within: float | None = None) -> str:
    """Prepare a claim; `within` shortens the time for which a release is waited for."""
    names = world.api.put(claim(number), [result(device, f"r{device}") for device in devices or ("w0",)])
    with pytest.MonkeyPatch.context() as patched:
        if within is not None:
            patched.setattr(prepare, "PREPARE_SECONDS", within)
        return (await world.preparer.prepare([names]))[names.uid].error


async def unprepared(world: World, number: int = 0) -> str:
    names = claim(number)
    return (await world.preparer.unprepare([names]))[names.uid].error


def released(backend: Widgets) -> list[str]:
    return [call[2] for call in backend.calls if call[0] == "released"]


# -- Unprepare ---------------------------------------------------------------------------------------------------------


async def test_a_pod_could_not_end_while_released_failed(
    world: World, backend: Widgets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    assert await unprepared(world) == ""
    assert world.spec(claim()) is None, "no container can start with it"
    record = world.preparer.store.read(claim().uid)
    assert record is not None
    assert (record.is_over, record.is_complete, record.held.is_prepared) == (True, False, False)
    await until(lambda: len(released(backend)) >= 3, "released is repeated")
    backend.failure = None
    await until(lambda: not world.files)
    assert backend.given == set()
    name = f"{DRIVER}: claim default/claim-0 ({claim().uid})"

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name.endswith("releases")]

    await until(lambda: len(told()) > 1)
    assert len(told()) == 2, "it is said at the begin and at the end"
    assert told()[0].startswith(f"{name} ended, but released() has not succeeded for w0: {FAILED}; kdp repeats it")
    assert told()[1].startswith(f"{name}: the release of w0 ended after ")


async def test_a_pod_could_not_end_while_the_vendors_driver_was_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "FIRST_PAUSE", 0.01)
    backend = Absent()
    async with running(tmp_path, backend) as world:
        await prepared(world)
        backend.is_loaded = False
        await until(lambda: world.supervisor.discovery.value.problem)
        assert await unprepared(world) == ""
        assert released(backend) == []
        backend.is_loaded = True
        await until(lambda: not world.files)
        assert released(backend) == ["rw0"]


async def test_a_pods_end_needs_no_backend_if_nothing_is_to_be_released(tmp_path: Path) -> None:
    backend = Absent()
    backend.unused_hooks = frozenset({"released"})
    async with running(tmp_path, backend) as world:
        await prepared(world)
        backend.is_loaded = False
        await until(lambda: world.supervisor.discovery.value.problem)
        world.api.hangs = True
        assert await unprepared(world) == ""
        assert world.files == []


async def test_a_pods_end_waited_for_a_release_of_a_minute(
    world: World, backend: Widgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert releases.UNPREPARE_SECONDS <= 1.0
    monkeypatch.setattr(releases, "UNPREPARE_SECONDS", 0.05)
    gate, real = threading.Event(), backend.released

    def slow(devices: kdp.Allocation) -> None:
        real(devices)
        gate.wait(60)

    backend.released = slow  # type: ignore[method-assign]
    await prepared(world)
    assert await unprepared(world) == ""
    assert await unprepared(world) == "", "the kubelet asks again, although the claim's lock is taken"
    assert world.start() is not None
    assert await unprepared(world) == "", "as does another process"
    error = await prepared(world, 1, within=0.0)
    assert error.startswith("device w0: not released yet after the last claim default/claim-0: released() has not")
    gate.set()
    await until(lambda: not world.files)
    assert released(backend) == ["rw0"]


async def test_a_pods_end_waited_for_a_late_allocate(
    world: World, backend: Widgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "UNPREPARE_SECONDS", 0.05)
    backend.gate.clear()
    call = asyncio.create_task(prepared(world))
    await until(lambda: backend.calls)
    assert await unprepared(world) == ""
    assert "the claim was unprepared meanwhile" in await call
    assert "allocate() has not returned" in await prepared(world, 1, within=0.0)
    assert released(backend) == [], "it would be given again after it was released"
    backend.gate.set()
    await until(lambda: not world.files)
    assert [each[0] for each in backend.calls] == ["allocate", "released"]


# -- restarts and reboots ----------------------------------------------------------------------------------------------


async def test_what_a_process_owed_is_released_by_the_next(world: World, backend: Widgets) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    backend.failure = None
    await world.restart()
    await until(lambda: not world.files)
    assert backend.allocations[-1].state == {"times": 1}


async def test_a_release_that_outlived_a_reboot_got_the_state_of_the_former_boot(
    world: World, backend: Widgets
) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    backend.failure = None
    await world.restart("boot-2")
    await until(lambda: not world.files)
    assert backend.allocations[-1].state == {}


async def test_after_a_reboot_released_got_the_state_of_the_former_boot(world: World, backend: Widgets) -> None:
    await prepared(world)
    await world.restart("boot-2")
    assert await unprepared(world) == ""
    assert (released(backend), backend.allocations[-1].state) == (["rw0"], {})


async def test_what_a_release_has_done_since_a_reboot_is_known_to_the_next_process(
    world: World, backend: Widgets
) -> None:
    """A wipe of an hour began from its beginning each time."""
    passes: list[object] = []

    def wipe(devices: kdp.Allocation) -> None:
        passes.append(devices.state.get("passes", 0))
        devices.state["passes"] = len(passes)
        if len(passes) < 3:
            raise kdp.AllocationError("the wipe goes on")

    backend.released = wipe  # type: ignore[method-assign]
    await prepared(world)
    await world.restart("boot-2")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(releases, "FIRST_PAUSE", 60.0)
        assert await unprepared(world) == ""
    assert passes == [0]
    await world.restart()
    await until(lambda: not world.files)
    assert passes == [0, 1, 2]


async def test_two_processes_release_a_claim_once(world: World, backend: Widgets) -> None:
    one = world.preparer
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    other = world.start()
    await other.take_over()
    await until(lambda: len(released(backend)) > 4)
    backend.failure, failed = None, len(released(backend))
    await until(lambda: not world.files)
    await until(lambda: not one._releases._owed and not other._releases._owed)
    assert len(released(backend)) - failed <= 2, "one may have failed meanwhile"
    assert backend.given == set()
    assert await prepared(world) == ""


# -- the next claim ----------------------------------------------------------------------------------------------------


async def test_a_prepare_waits_for_the_release_and_succeeds(world: World, backend: Widgets) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    call = asyncio.create_task(prepared(world, 1))
    before = len(released(backend))
    await until(lambda: len(released(backend)) > before + 1)
    assert not call.done()
    backend.failure = None
    assert await call == ""
    assert backend.given == {("claim-1", "rw0", ("w0",))}


def test_a_prepare_is_answered_before_the_kubelet_gives_up() -> None:
    assert prepare.PREPARE_SECONDS <= 40.0


@pytest.mark.parametrize("same", ["another claim", "another UID", "the same claim"])
async def test_a_prepare_is_refused_while_the_release_fails_and_succeeds_later(
    world: World, backend: Widgets, same: str
) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    names = {
        "another claim": claim(1),
        "another UID": attrs.evolve(claim(), uid=claim(9).uid),
        "the same claim": claim(),
    }[same]
    world.api.put(names, [result("w0", "rw0")])

    async def ask() -> str:
        return (await world.preparer.prepare([names]))[names.uid].error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepare, "PREPARE_SECONDS", 0.05)
        assert await ask() == (
            f"device w0: not released yet after the last claim default/claim-0: {FAILED}; the kubelet asks again"
        )
    assert await prepared(world, 2, "w1") != "", "its own allocate fails"
    assert [call[0] for call in backend.calls if call[3] == ("w1",)] == ["allocate"], "but it waits for nothing"
    backend.failure = None
    assert await ask() == ""


async def test_a_claim_that_is_allocated_anew_waits_for_its_former_devices(world: World, backend: Widgets) -> None:
    await prepared(world)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backend, "released", _raises)
        assert "device w0: not released yet" in await prepared(world, 0, "w1", within=0.0)
        assert backend.given == {("claim-0", "rw0", ("w0",))}
    assert await prepared(world, 0, "w1") == ""
    assert backend.given == {("claim-0", "rw1", ("w1",))}


def _raises(_: kdp.Allocation) -> None:
    raise RuntimeError("no answer")


# -- what others see of it ---------------------------------------------------------------------------------------------


async def judged(world: World) -> tuple[kdp.Device, ...]:
    """Return the devices when one of them is withheld."""
    world.supervisor.outdated = world.preparer.outdated
    world.supervisor.judge_again()
    await until(lambda: any(not each.health.is_healthy for each in world.supervisor.discovery.value.devices or ()))
    return world.supervisor.discovery.value.devices or ()


@pytest.mark.parametrize("scrubs", [False, True])
async def test_devices_are_withheld_without_the_end_of_a_pod(world: World, backend: Widgets, scrubs: bool) -> None:
    """A taint NoExecute would evict the pods that share the device."""
    world.scrubs = scrubs
    world.start()
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    devices = await judged(world)
    [device] = [each for each in devices if not each.health.is_healthy]
    assert device.id == "w0"
    [taint] = tainted([device], DRIVER, "NoExecute", world.supervisor.discovery.value.health)[0].taints
    assert (taint.effect, taint.value) == ("NoSchedule", "scrub")
    assert "for released() after claim default/claim-0" in (device.health.reason or "")
    backend.failure = None
    await until(lambda: all(each.health.is_healthy for each in world.supervisor.discovery.value.devices or ()))


async def test_only_the_owed_release_lets_a_claim_through_to_wait(world: World, backend: Widgets) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    known = {each.id: each for each in await judged(world)}
    [withheld] = known["w0"].health.conditions
    sick = attrs.evolve(withheld, kind="fan", whose="backend", reason="the fan stands still")
    item = claim_object(claim(1), [result("w0")])

    def planned(device: kdp.Device) -> object:
        return plan_of(item, claim(1), driver=DRIVER, pool=POOL, devices={"w0": device}, backend=backend)

    assert planned(known["w0"])
    both = kdp.Health("both", (withheld, sick))
    with pytest.raises(ClaimError, match="device w0: is unhealthy: both"):
        planned(attrs.evolve(known["w0"], health=both))


async def test_a_device_that_another_claim_shares_stays_healthy_while_a_release_fails(
    world: World, backend: Widgets
) -> None:
    for number in (0, 1):
        names = claim(number)
        world.api.put(names, [result("w0", share=f"share-{number}", consumedCapacity={"memory": "1Gi"})])
        await world.preparer.prepare([names])
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    assert world.preparer.outdated(backend.devices) == {}


async def test_admin_access_that_is_not_released_withholds_no_device(world: World, backend: Widgets) -> None:
    names: Claim = world.api.put(claim(), [result("w0", admin=True)])
    await world.preparer.prepare([names])
    backend.failure = RuntimeError("no answer")
    assert await unprepared(world) == ""
    assert world.preparer.outdated(backend.devices) == {}


async def test_another_protocol_withholds_the_devices_of_a_claim_that_is_over(world: World, backend: Widgets) -> None:
    """The data of the last pod are still on them."""
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    [found] = claimed_devices(world.folder)
    assert (found.claim, found.holding.name) == (claim().uid, (DRIVER, "w0"))


async def test_a_claim_that_is_over_is_not_ended_again_when_it_leaves_the_api(
    world: World, backend: Widgets, caplog: pytest.LogCaptureFixture
) -> None:
    await prepared(world)
    backend.failure = RuntimeError("no answer")
    await unprepared(world)
    world.api.drop(claim())
    assert await world.preparer.collect(grace=0.0) == []
    assert "the kubelet has not unprepared it" not in caplog.text
