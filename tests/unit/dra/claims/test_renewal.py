"""What a prepared claim's CDI spec means later: a runtime reads it at each start of a container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from tests.waiting import until

import kdp
from kdp.model.claims import Claim

from .claim_objects import claim, result
from .claims_world import Widgets, World, running


class Plain(Widgets):
    """Without hooks that have a part in a claim."""

    unused_hooks = frozenset({"allocate", "released"})


def of_node(path: str | Path, *, identity: str = "") -> kdp.Device:
    node = kdp.DeviceNode(host_path=path, container_path="/dev/w0")
    return kdp.Device(
        id="w0", identity=identity, edits=kdp.ContainerEdits(device_nodes=[node], env={"NODE": str(path)})
    )


async def changed(world: World, backend: Widgets, *devices: kdp.Device) -> None:
    """Have these devices, and let the driver notice it."""
    backend.devices = [*devices]
    version = world.supervisor.discovery.version
    world.supervisor.rescan()
    await until(lambda: world.supervisor.discovery.version > version)
    await world.preparer.renew()


def given(world: World, names: Claim) -> tuple[str | None, ...]:
    spec = world.spec(names)
    return () if spec is None else tuple(n.host_path or n.path for d in spec.devices for n in d.edits.device_nodes)


def judged(world: World) -> dict[str, str | None]:
    found = world.supervisor.discovery.value.devices or ()
    return {device.id: device.health.reason for device in found}


@pytest.mark.parametrize("make", [Widgets, Plain])
async def test_a_claims_spec_named_the_links_target_of_before(make: Callable[[], Widgets], tmp_path: Path) -> None:
    backend, link = make(), tmp_path / "by-id"
    link.symlink_to("/dev/null")
    backend.devices = [of_node(link)]
    async with running(tmp_path, backend) as world:
        names = world.api.put(claim(), [result("w0")])
        await world.preparer.prepare([names])
        assert given(world, names) == ("/dev/null",)
        link.unlink()
        link.symlink_to("/dev/zero")
        await world.preparer.renew()
        assert given(world, names) == ("/dev/zero",)
        world.cdi.file(world.spec(names).kind, names.uid).unlink()  # type: ignore[union-attr]
        await world.start().prepare([names])  # as a kubelet does that has restarted
        assert given(world, names) == ("/dev/zero",)


async def test_a_claim_without_a_hook_follows_a_bare_number(tmp_path: Path) -> None:
    backend = Plain()
    backend.devices = [of_node("/dev/null")]
    async with running(tmp_path, backend) as world:
        world.supervisor.outdated = world.preparer.outdated
        names = world.api.put(claim(), [result("w0")])
        before = await world.preparer.prepare([names])
        await changed(world, backend, of_node("/dev/zero"))
        assert given(world, names) == ("/dev/zero",)
        spec = world.spec(names)
        assert spec is not None
        assert [device.edits.env for device in spec.devices] == [("NODE=/dev/zero",)]
        assert judged(world) == {"w0": None}
        assert (await world.start().prepare([names])) == before


@pytest.mark.parametrize(
    ("make", "then", "now", "reason"),
    [
        (
            Widgets,
            of_node("/dev/null"),
            of_node("/dev/zero"),
            "is /dev/zero now; the pod was given /dev/null; delete the pod",
        ),
        (
            Plain,
            of_node("/dev/null", identity="1"),
            of_node("/dev/null", identity="2"),
            "is other hardware now (2); the pod was given 1; delete the pod",
        ),
    ],
)
async def test_what_a_claim_was_given_is_another_device_now(
    make: Callable[[], Widgets], then: kdp.Device, now: kdp.Device, reason: str, tmp_path: Path
) -> None:
    """Its container does not start: the runtime does not find the name. Also after a restart of the driver."""
    backend = make()
    backend.devices = [then]
    async with running(tmp_path, backend) as world:
        names = world.api.put(claim(), [result("w0")])
        world.supervisor.outdated = world.preparer.outdated
        await world.preparer.prepare([names])
        await changed(world, backend, now)
        assert judged(world) == {"w0": reason}
        assert given(world, names) == ()
        preparer = world.start()
        await preparer.recover()
        world.supervisor.outdated = preparer.outdated
        assert reason in (await preparer.prepare([names]))[names.uid].error
        await changed(world, backend, now)
        assert (judged(world), given(world, names)) == ({"w0": reason}, ())
        await changed(world, backend, attrs.evolve(then, attributes={"again": True}))
        assert (judged(world), given(world, names)) == ({"w0": None}, ("/dev/null",))
        await changed(world, backend, now)
        await preparer.unprepare([names])
        assert judged(world) == {"w0": None}


@pytest.mark.parametrize("make", [Widgets, Plain])
async def test_the_node_of_a_claims_device_that_is_gone_was_another_devices(
    make: Callable[[], Widgets], tmp_path: Path
) -> None:
    """The claim's spec kept it, so that its container started with what another claim had."""
    backend = make()
    backend.devices = [of_node("/dev/null")]
    async with running(tmp_path, backend) as world:
        names = world.api.put(claim(), [result("w0")])
        await world.preparer.prepare([names])
        await changed(world, backend)
        assert given(world, names) == ("/dev/null",)
        await changed(world, backend, attrs.evolve(of_node("/dev/null"), id="w1"))
        assert given(world, names) == ()
        preparer = world.start()
        await preparer.recover()
        reason = "device w0 is gone, and /dev/null is w1 now; delete the pod"
        assert reason in (await preparer.prepare([names]))[names.uid].error


async def test_seats_of_one_node_stay_in_their_claims_when_one_is_gone(tmp_path: Path) -> None:
    backend, seats = Plain(), [attrs.evolve(of_node("/dev/null"), id=each) for each in ("w0", "w1")]
    backend.devices = seats
    async with running(tmp_path, backend) as world:
        names = world.api.put(claim(), [result("w0")])
        await world.preparer.prepare([names])
        await changed(world, backend, seats[1])
        assert given(world, names) == ("/dev/null",)


async def test_a_claims_file_that_somebody_removed_was_not_written_again(tmp_path: Path) -> None:
    backend = Plain()
    backend.devices = [of_node("/dev/null")]
    async with running(tmp_path, backend) as world:
        names = world.api.put(claim(), [result("w0")])
        await world.preparer.prepare([names])
        await world.preparer.renew()
        world.cdi.file(world.spec(names).kind, names.uid).unlink()  # type: ignore[union-attr]
        await world.preparer.renew()
        assert given(world, names) == ("/dev/null",)
