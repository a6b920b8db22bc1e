"""Faults 41 to 52: calls that no kubelet would make, or not so, or not then."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
from tests.faults import FaultyKubelet
from typing_extensions import override

import kdp
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import (
    RESOURCE,
    Block,
    Figure,
    Stuck,
    Widgets,
    connected,
    registered_times,
    registers,
    running,
    until,
)


class Named(Widgets):
    """Tells each container which devices it has; cancellable, and slow if it is told so."""

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.wait: float = 0.0
        self.asked = self.cancelled = 0
        self.prepared: list[tuple[str, ...]] = []
        self.may_prepare = threading.Event()
        self.may_prepare.set()

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.asked += 1
        try:
            await anyio.sleep(self.wait)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(sorted(devices.ids))})

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self.may_prepare.wait(30)
        self.prepared.append(tuple(devices.ids))


async def test_wrong_ids_get_a_sentence_each(k: FaultyKubelet) -> None:
    """Scenarios 37, 38 and 40."""
    broken = kdp.Device(id="w1", health=kdp.Health.unhealthy("fan failed"))
    async with connected(k, Named("w0", broken)):
        answers = await k.faults.allocate_wrong_ids(RESOURCE)
        assert "has no device 'no-such-device'" in str(answers.pop("unknown"))
        assert "device w1 is unhealthy: fan failed" in str(answers.pop("unhealthy"))
        assert "the request names no device" in str(answers.pop("empty"))
        assert answers == {"duplicate": None}
        assert k.streams(RESOURCE) == 1


async def test_several_containers_are_answered_in_their_order(k: FaultyKubelet) -> None:
    """Scenario 39."""
    async with connected(k, Named("w0", "w1", "w2")):
        replies = await k.faults.allocate_several(RESOURCE, ["w2"], ["w0", "w1"])
        assert [reply.envs["WIDGETS"] for reply in replies] == ["w2", "w0,w1"]


async def test_fifty_calls_at_once_get_their_own_devices(k: FaultyKubelet) -> None:
    """Scenario 41."""
    backend = Named(*kdp.Device.counted("w", 50))
    async with connected(k, backend):
        asked = [[f"w-{number}"] for number in range(50)]
        replies = await k.faults.allocate_in_parallel(RESOURCE, asked)
        assert [[reply.envs["WIDGETS"]] for [reply] in replies] == asked


async def test_a_cancelled_call_cancels_the_hook(k: FaultyKubelet) -> None:
    """Scenario 44."""
    backend = Named("w0")
    async with connected(k, backend):
        backend.wait = 600.0
        with anyio.fail_after(PATIENCE):
            while not backend.asked:  # on a busy machine the call may end before the hook begins
                assert await k.faults.cancel_allocate(RESOURCE, ["w0"])
        await until(lambda: backend.cancelled == backend.asked)
        backend.wait = 0.0
        assert not await k.faults.cancel_allocate(RESOURCE, ["w0"], after=10.0)


async def test_the_same_ids_get_the_same_answer(k: FaultyKubelet) -> None:
    """Scenario 35."""
    async with connected(k, Named("w0", "w1")):
        replies = await k.faults.repeat_allocate(RESOURCE, ["w1", "w0"], times=5)
        assert [dict(reply.envs) for reply in replies] == [{"WIDGETS": "w0,w1"}] * 5


async def test_a_device_that_has_just_gone_is_refused(k: FaultyKubelet, figure: Figure) -> None:
    backend = Named("w0", "w1")
    async with connected(k, backend), anyio.create_task_group() as tasks:
        backend.devices.pop()
        tasks.start_soon(lambda: anyio.to_thread.run_sync((backend.reporter or _none()).rescan))
        answer, seconds = await k.faults.allocate_removed(RESOURCE, "w1")
        figure("list says gone -> Allocate answered", seconds * 1e3, "ms")
        assert "device w1 is unhealthy: the device is gone" in str(answer)


def _none() -> kdp.Reporter:
    raise AssertionError("the backend has not been watched yet")


async def test_a_call_does_not_wait_for_a_list_that_is_on_its_way(k: FaultyKubelet) -> None:
    backend = Named(*kdp.Device.counted("w", 20_000))
    async with connected(k, backend):
        await k.until(allocatable={RESOURCE: 20_000})
        reporter = await backend.report()
        k.pause_reading(RESOURCE)
        for number in range(3):
            reporter.fault(f"w-{number}", "XID 79")
        assert await k.faults.allocate_during_list(RESOURCE, ["w-9"]) is None
        await k.until(allocatable={RESOURCE: 19_997})


async def test_an_impossible_wish_is_no_error(k: FaultyKubelet) -> None:
    """Scenario 50."""

    class Preferring(Named):
        @override
        def prefer(self, request: kdp.PreferRequest) -> list[str]:
            return [device.id for device in request.available][: request.size]

    async with connected(k, Preferring("w0", "w1", "w2")):
        answers = await k.faults.prefer_impossibly(RESOURCE)
        assert set(answers) == {"must include what is not offered", "size 0", "more than there are"}
        assert all(isinstance(answer, tuple) for answer in answers.values()), answers


async def test_a_pre_start_without_time_spoils_no_other(k: FaultyKubelet) -> None:
    backend = Named("w0")
    async with connected(k, backend):
        backend.may_prepare.clear()  # else the answer may be as quick as the deadline
        assert "DeadlineExceeded" in str(await k.faults.pre_start_in_a_hurry(RESOURCE, ["w0"], deadline=0.0))
        backend.may_prepare.set()
        await k.faults.pre_start_in_a_hurry(RESOURCE, ["w0"])
        assert await k.faults.pre_start_in_a_hurry(RESOURCE, ["w0"], deadline=30.0) is None
        assert backend.prepared[-1] == ("w0",)
        assert k.streams(RESOURCE) == 1


async def test_a_call_needs_no_stream(k: FaultyKubelet) -> None:
    k.faults.dial_without_stream()
    async with running(k, Named("w0")):
        await k.until(registered=RESOURCE)
        assert await k.faults.call_before_stream(RESOURCE, ["w0"]) is None


async def test_a_method_that_does_not_exist_is_unimplemented(k: FaultyKubelet) -> None:
    async with connected(k, Named("w0")):
        assert "Unimplemented" in str(await k.faults.call_unknown_method(RESOURCE))
        assert k.streams(RESOURCE) == 1
    assert len(registers(k)) == 1


async def test_restarted_in_the_middle_of_a_call(k: FaultyKubelet, block: Callable[[], Block]) -> None:
    """Fault 56, with a hook that can be cancelled and one that cannot."""
    stuck = block()
    gentle = Named("w0")
    gentle.wait = 600.0
    for backend in (gentle, Stuck(stuck)):
        before = len(registers(k))
        async with connected(k, backend):
            answer = await k.faults.restart_during_allocate(RESOURCE, ["w0"])
            assert answer is not None
            await k.until(registered_times(k, before + 2), streaming=RESOURCE)
    assert gentle.cancelled == 1
    stuck.release()
    await until(lambda: not any(thread.name.startswith("kdp-Stuck") for thread in threading.enumerate()))
