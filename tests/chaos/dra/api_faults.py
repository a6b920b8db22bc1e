"""What can happen to the API server, and what others do to the driver's slices there, each with how often."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from kdp_testkit.dra.status import ApiRefused

from .driver import DRIVER
from .world import DraWorld

Operation = Callable[[DraWorld], Awaitable[None]]

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ODD: Final = (b"null", b"[]", b"{}", b"1", b"<html>gone</html>", b'{"items": null, "metadata": {}}', b'{"status": 1}')
ODD_FIELDS: Final = ({"metadata": None}, {"spec": None}, {"status": [1.5]}, {"metadata": {"uid": 7}})


def _is_disturbed(world: DraWorld) -> None:
    world.causes.add("the API server was not well")


def go_away(world: DraWorld) -> None:
    """Have the API server away until the next peace."""
    _is_disturbed(world)
    world.server.faults.away()


async def refuse(world: DraWorld) -> None:
    """Some requests are refused: a conflict, too many requests, an error, a server that starts."""
    _is_disturbed(world)
    faults, times = world.server.faults, world.rng.randint(1, 4)
    method = world.rng.choice(["", "GET", "POST", "PUT", "DELETE"])
    match world.rng.randrange(4):
        case 0:
            faults.refused(409, "the object has been modified", method=method or "PUT", times=times)
        case 1:
            faults.refused(429, "too many requests", retry_after=1, method=method, times=times)
        case 2:
            faults.internal_error(method=method, times=times)
        case _:
            faults.refused(503, "apiserver is shutting down", method=method, times=times)


async def answer_oddly(world: DraWorld) -> None:
    """Some requests are answered by something that is no API server, until the next peace or a few times."""
    _is_disturbed(world)
    content = world.rng.choice([*ODD, *(json.dumps(fields).encode() for fields in ODD_FIELDS)])
    status = world.rng.choice([200, 200, 200, 404, 410, 503])
    world.server.faults.refused(status, content=content, times=world.rng.choice([1, 3, None]))


async def be_away(world: DraWorld) -> None:
    """The API server is gone for a while, or until the next peace."""
    go_away(world)
    await anyio.sleep(world.rng.uniform(0.0, 1.5))
    if world.rng.random() < 0.5:
        world.server.faults.back()


async def be_slow(world: DraWorld) -> None:
    """Answers take long until the next peace, also longer than the driver waits."""
    _is_disturbed(world)
    world.server.faults.slow(world.rng.choice([0.1, 0.5, 3.0]))


async def end_watches(world: DraWorld) -> None:
    """All watches end, without a word or because their version is too old (410)."""
    _is_disturbed(world)
    world.rng.choice([world.server.faults.drop_watches, world.server.faults.expire_watches])()


async def delete_slices(world: DraWorld) -> None:
    """Somebody deletes a slice, or all of them."""
    _is_disturbed(world)
    for item in await _slices(world):
        with contextlib.suppress(ApiRefused):
            await world.server.ask("DELETE", f"{SLICES}/{item['metadata']['name']}")
        if world.rng.random() < 0.5:
            break


async def edit_slices(world: DraWorld) -> None:
    """Somebody changes the driver's slices: takes devices out, counts otherwise, says another generation."""
    _is_disturbed(world)
    for item in await _slices(world):
        spec = item["spec"]
        match world.rng.randrange(4):
            case 0:
                spec["devices"] = spec.get("devices", [])[: world.rng.randint(0, 3)]
            case 1:
                spec["pool"]["generation"] += world.rng.choice([1, 7])
            case 2:
                spec["pool"]["resourceSliceCount"] += 1
            case _:
                item["metadata"]["labels"] = {"somebody": "was-here"}
        with contextlib.suppress(ApiRefused):
            await world.server.ask("PUT", f"{SLICES}/{item['metadata']['name']}", item)


async def add_slice(world: DraWorld) -> None:
    """Somebody adds a slice to the driver's pool, with a device that there is not."""
    _is_disturbed(world)
    pool = {"name": "node0", "generation": world.rng.choice([0, 1, 1000]), "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node0", "pool": pool, "devices": [{"name": "ghost"}]}
    with contextlib.suppress(ApiRefused):
        await world.server.ask("POST", SLICES, {"metadata": {"generateName": "somebody-"}, "spec": spec})


async def _slices(world: DraWorld) -> list[dict[str, Any]]:
    with contextlib.suppress(ApiRefused):
        items: list[dict[str, Any]] = (await world.server.ask("GET", SLICES))["items"]
        return items
    return []


WEIGHTS: Final[dict[Operation, int]] = {
    refuse: 8,
    answer_oddly: 4,
    be_away: 3,
    be_slow: 2,
    end_watches: 4,
    delete_slices: 4,
    edit_slices: 4,
    add_slice: 2,
}
