"""The single steps; that they hold in any order is in test_prepare_properties.py and test_lifecycle_properties.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import attrs
import pytest
from tests.waiting import until

import kdp
from kdp.cluster.api import ApiError
from kdp.dra.claims import lifecycle
from kdp.dra.claims.prepare import JobOutcome
from kdp.errors import CheckpointError
from kdp.supervision.supervisor import Deadlines

from .claim_objects import DRIVER, POOL, claim, entry, result
from .claims_world import Mode, Widgets, World, running

MODE = {"apiVersion": f"{DRIVER}/v1", "kind": "Mode", "speed": 7}


@pytest.fixture
def backend() -> Widgets:
    return Widgets()


@pytest.fixture
async def world(tmp_path: Path, backend: Widgets) -> AsyncIterator[World]:
    async with running(tmp_path, backend, deadlines=Deadlines(allocate=1.0, released=5.0)) as found:
        yield found


async def prepared(world: World, number: int = 0) -> JobOutcome:
    [outcome] = (await world.preparer.prepare([claim(number)])).values()
    return outcome


async def unprepared(world: World, number: int = 0) -> str:
    [outcome] = (await world.preparer.unprepare([claim(number)])).values()
    return outcome.error


# -- scenarios 12 to 15 ------------------------------------------------------------------------------------------------


async def test_a_claim_is_prepared(world: World, backend: Widgets) -> None:
    names = world.api.put(claim(), [result("w1", "gpu/large"), result("w0", "gpu/large")], entry(MODE, "gpu"))
    outcome = await prepared(world)
    assert outcome.error == ""
    assert [(d.base, d.pool, d.name, d.share_id) for d in outcome.devices] == [
        ("gpu", POOL, "w1", ""),
        ("gpu", POOL, "w0", ""),
    ]
    spec = world.spec(names)
    assert spec is not None
    found = {f"{spec.kind}={device.name}": device.edits for device in spec.devices}
    assert [d.cdi_ids for d in outcome.devices] == [(each,) for each in found], (
        "what the kubelet is told is on the disk"
    )
    assert [(sorted(e.env), [n.path for n in e.device_nodes]) for e in found.values()] == [
        (["WIDGETS=w0,w1", "WIDGET_W1=1"], ["/dev/w1"]),
        (["WIDGET_W0=1"], ["/dev/w0"]),
    ]
    [allocation] = backend.allocations
    assert (allocation.claim, allocation.request, allocation.config) == (names, "gpu/large", Mode(speed=7))
    assert allocation.ids == ("w0", "w1")
    assert backend.given == {("claim-0", "gpu/large", ("w0", "w1"))}


async def test_two_requests_of_a_claim_set_one_variable_to_two_values(world: World, backend: Widgets) -> None:
    names = world.api.put(claim(0), [result("w0", "a"), result("w1", "b"), result("w2", "b")])
    assert (await prepared(world)).error == ""
    spec = world.spec(names)
    assert spec is not None
    values = [each for device in spec.devices for each in device.edits.env if each.startswith("WIDGETS=")]
    assert values == ["WIDGETS=w0,w1,w2"] * 2, "a container may use both requests, or one"
    backend.text = "fast,fast"
    world.api.put(claim(4), [result("w3", "a")])
    assert (await prepared(world, 4)).error == ""
    spec = world.spec(claim(4))
    assert spec is not None
    assert "WIDGETS=fast,fast" in spec.devices[0].edits.env, "the places in a list have a meaning"
    backend.text = ""
    backend.joined_env = {}
    assert (await unprepared(world)) == ""
    world.api.put(claim(3), [result("w0", "a"), result("w1", "b")])
    assert (await prepared(world, 3)).error == (
        "requests a and b set environment variable WIDGETS to different values, w0 and w1, and a container may use "
        "both; give the requests equal parameters, or have the driver join the variable by joined_env or name it by "
        "its request"
    )


async def test_one_bad_claim_leaves_the_others_alone(world: World) -> None:
    world.api.put(claim(0), [result("w0")])
    world.api.put(claim(1), [result("gone")])
    world.api.put(claim(2), None)
    outcomes = await world.preparer.prepare([claim(number) for number in range(4)])
    errors = {number: outcomes[claim(number).uid].error for number in range(4)}
    assert errors == {
        0: "",
        1: ("device gone of pool node0: is gone; widget.example.com on this node has 4 devices in pool node0"),
        2: "claim default/claim-2: is not allocated; the scheduler must do it first",
        3: 'resourceclaims "claim-3" not found',
    }
    record = f"{claim().uid}.json"
    assert world.files == [f".{record}.copy", record, f"kdp_{DRIVER}_claim_{record}"], "no state of the bad ones"


async def test_claims_of_one_call_are_fetched_together(world: World) -> None:
    for number in range(4):
        world.api.put(claim(number), [result(f"w{number}")])
    world.api.hangs = True
    call = asyncio.create_task(world.preparer.prepare([claim(number) for number in range(4)]))
    await until(lambda: len(world.api.asked) == 4)
    call.cancel()
    await world.preparer.close(0)


async def test_an_api_server_that_hangs_is_an_error_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lifecycle.FETCH_SECONDS < 10
    monkeypatch.setattr(lifecycle, "FETCH_SECONDS", 0.05)
    world.api.hangs = True
    assert (await prepared(world)).error == "the API server did not give claim default/claim-0 within 0.05 s"
    assert world.files == []


# -- what else a claim can be ------------------------------------------------------------------------------------------


async def test_a_device_is_not_given_twice(world: World, backend: Widgets) -> None:
    world.api.put(claim(0), [result("w0")])
    world.api.put(claim(1), [result("w0")])
    world.api.put(claim(2), [result("w0", admin=True)])
    first = await prepared(world, 0)
    assert (await prepared(world, 1)).error == (
        f"device w0: is already prepared for claim default/claim-0 ({claim().uid}); a device serves one claim, "
        "unless each has a share of it"
    )
    assert (await prepared(world, 2)).error == "", "admin access disturbs nobody"
    assert [each.admin_access for each in backend.allocations] == [False, True]
    assert await unprepared(world, 2) == ""
    assert backend.allocations[-1].admin_access, "released() is told, too"
    assert await prepared(world, 0) == first
    assert await unprepared(world, 0) == ""
    assert (await prepared(world, 1)).error == ""


async def test_shares_of_a_device_come_and_go_alone(world: World, backend: Widgets) -> None:
    for number in (0, 1):
        world.api.put(claim(number), [result("w0", share=f"share-{number}", consumedCapacity={"memory": "1Gi"})])
    outcomes = [await prepared(world, number) for number in (0, 1)]
    assert [outcome.devices[0].share_id for outcome in outcomes] == ["share-0", "share-1"]
    assert len({outcome.devices[0].cdi_ids for outcome in outcomes}) == 2
    assert backend.allocations[0].consumed == {"w0": {"memory": kdp.Quantity("1Gi")}}
    assert backend.allocations[0].share_id == {"w0": "share-0"}
    assert [each.shared_with for each in backend.allocations] == [{}, {"w0": ("default/claim-0",)}]
    assert await unprepared(world, 0) == ""
    assert backend.allocations[-1].shared_with == {"w0": ("default/claim-1",)}
    assert await prepared(world, 1) == outcomes[1]
    assert world.spec(claim(0)) is None
    assert world.spec(claim(1)) is not None


class Plain(Widgets):
    """Devices that say all of it themselves; what is given is remembered by nobody but kdp."""

    unused_hooks = frozenset({"allocate"})


async def test_without_allocate_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, Plain()) as world:
        names = world.api.put(claim(), [result("w0")])

        def full(*_: object, **__: object) -> None:
            raise CheckpointError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(world.preparer.store, "write", full)
            assert (await prepared(world)).error == "the disk is full"
        assert world.files == []
        assert (await prepared(world)).error == ""
        assert world.spec(names) is not None
        assert await unprepared(world) == ""
        assert world.files == []


async def test_without_allocate_two_claims_at_once_cannot_both_have_it(tmp_path: Path) -> None:
    async with running(tmp_path, Plain()) as world:
        for number in (0, 1):
            world.api.put(claim(number), [result("w0")])
        outcomes = await world.preparer.prepare([claim(0), claim(1)])
        assert sorted(bool(outcome.error) for outcome in outcomes.values()) == [False, True]
        assert len(world.files) == 2, "one record, one spec"


async def test_a_cdi_directory_that_cannot_be_written_is_an_error_and_nothing_is_complete(world: World) -> None:
    world.api.put(claim(), [result("w0")])
    world.cdi.path.touch()  # a file where the directory should be
    assert "cannot be written: " in (await prepared(world)).error
    record = world.preparer.store.read(claim().uid)
    assert record is not None
    assert not record.is_complete
    world.cdi.path.unlink()
    assert (await prepared(world)).error == ""


# -- cancelled, late, hanging ------------------------------------------------------------------------------------------


async def test_a_retry_joins_what_is_going_on(world: World, backend: Widgets) -> None:
    world.api.put(claim(), [result("w0")])
    backend.gate.clear()
    first = asyncio.create_task(prepared(world))
    await until(lambda: backend.calls)
    first.cancel()  # the kubelet's deadline
    second = asyncio.create_task(prepared(world))
    await asyncio.sleep(0)
    backend.gate.set()
    assert (await second).error == ""
    assert len(backend.calls) == 1


async def test_unprepare_waits_for_a_late_allocate_and_ends_unprepared(world: World, backend: Widgets) -> None:
    world.api.put(claim(), [result("w0")])
    backend.gate.clear()
    call = asyncio.create_task(prepared(world))
    await until(lambda: backend.calls)
    call.cancel()
    undo = asyncio.create_task(unprepared(world))
    await until(lambda: world.supervisor.hooks.state.lanes["allocate"].lock._waiters)
    assert [each[0] for each in backend.calls] == ["allocate"], "the thread is still at it"
    backend.gate.set()
    assert await undo == ""
    await until(lambda: not world.files)
    assert [each[0] for each in backend.calls] == ["allocate", "released"]
    assert backend.given == set()


async def test_after_a_reload_unprepare_did_not_wait_for_a_late_allocate(world: World, backend: Widgets) -> None:
    """`released` ran beside it, and what the thread did afterwards was never undone."""
    world.api.put(claim(), [result("w0")])
    backend.gate.clear()
    call = asyncio.create_task(prepared(world))
    await until(lambda: backend.calls)
    await world.preparer.close(0.05)
    await call
    world.start()
    undo = asyncio.create_task(unprepared(world))
    await until(lambda: world.supervisor.hooks.state.lanes["allocate"].lock._waiters)
    assert [each[0] for each in backend.calls] == ["allocate"]
    backend.gate.set()
    assert await undo == ""
    await until(lambda: not world.files)
    assert [each[0] for each in backend.calls] == ["allocate", "released"]


async def test_a_claim_whose_allocate_never_began_could_not_be_unprepared(tmp_path: Path, backend: Widgets) -> None:
    """It waited for that of another claim, which hung."""
    async with running(tmp_path, backend, deadlines=Deadlines(allocate=0.05, released=1.0)) as world:
        world.api.put(claim(), [result("w0")])
        world.api.put(claim(1), [result("w1")])
        backend.gate.clear()
        assert "did not return within" in (await prepared(world)).error
        assert "did not return within" in (await prepared(world, 1)).error
        assert await unprepared(world, 1) == ""
        backend.gate.set()


async def test_at_the_stop_calls_in_flight_are_answered(world: World, backend: Widgets) -> None:
    world.api.put(claim(), [result("w0")])
    world.api.put(claim(1), [result("w1")])
    backend.gate.clear()
    call = asyncio.create_task(prepared(world))
    await until(lambda: backend.calls)
    with anyio.fail_after(5):
        await world.preparer.close(0.1)
        assert (await call).error == "the driver is stopping; the kubelet asks again"
    assert (await prepared(world, 1)).error == "the driver is stopping; the kubelet asks again"
    backend.gate.set()
    world.start()
    assert (await prepared(world)).error == ""


# -- Unprepare ---------------------------------------------------------------------------------------------------------


async def test_unprepare_needs_no_api_server_and_knows_what_was_given(world: World, backend: Widgets) -> None:
    world.api.put(claim(), [result("w0", consumedCapacity={"memory": "1Gi"})], entry(MODE))
    await prepared(world)
    world.api.drop(claim())
    world.start()
    asked = len(world.api.asked)
    assert await unprepared(world) == ""
    assert len(world.api.asked) == asked
    given, back = backend.allocations
    assert back.state == {"times": 1}
    assert (back.claim, back.request, back.config, back.ids, back.consumed) == (
        given.claim,
        given.request,
        given.config,
        given.ids,
        given.consumed,
    )
    assert world.files == []
    assert await unprepared(world) == "", "once more"
    assert len(backend.calls) == 2


async def test_a_device_that_is_gone_is_released_as_gone(world: World, backend: Widgets) -> None:
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    backend.devices = [kdp.Device(id="w1")]
    version = world.supervisor.discovery.version
    world.supervisor.rescan()
    await world.supervisor.discovery.after(version)
    assert await unprepared(world) == ""
    assert backend.allocations[-1][0].health.reason is not None


# -- reboots, lost files, claims that are gone -------------------------------------------------------------------------


async def test_a_broken_record_is_found_again_by_its_spec(world: World, backend: Widgets) -> None:
    names = world.api.put(claim(), [result("w0", "gpu/large", share="s", consumedCapacity={"memory": "1"})])
    await prepared(world)
    for file in world.preparer.store.directory.iterdir():  # the record and its copy
        file.write_bytes(b"")
    world.start()
    assert await world.preparer.recover() == [names.uid]
    assert world.preparer.store.set_aside == [names.uid]
    world.api.put(claim(1), [result("w0")])
    assert "is already prepared for claim default/claim-0" in (await prepared(world, 1)).error
    world.api.drop(names)
    assert await unprepared(world) == ""
    back = backend.allocations[-1]
    assert (back.request, back.ids) == ("gpu/large", ("w0",))
    assert back.share_id == {"w0": "s"}
    assert world.spec(names) is None


async def test_claims_that_are_gone_are_undone_after_a_while(world: World, backend: Widgets) -> None:
    for number in range(3):
        world.api.put(claim(number), [result(f"w{number}")])
        await prepared(world, number)
    world.api.drop(claim(0))
    world.api.put(attrs.evolve(claim(1), uid="another"), None)
    world.start()
    assert await world.preparer.collect(grace=3600) == []
    world.api.failure = ApiError("the API server is away")
    assert await world.preparer.collect(grace=0) == [], "nobody knows"
    world.api.failure = None
    assert await world.preparer.collect(grace=0) == [claim(0).uid, claim(1).uid]
    assert backend.given == {("claim-2", "r", ("w2",))}
