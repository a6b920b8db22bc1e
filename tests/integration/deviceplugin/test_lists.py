"""How often kdp Lists: each List may do harm (kubernetes#137534)."""

from __future__ import annotations

import anyio
import attrs
import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations, tracker
from kdp.kubelet import podsapi
from kdp.testing import Pod, SimulatedKubelet, events

from .helpers import RESOURCE, Figure, connected, until
from .test_release import QUICK, Kept

FASTER = 150.0
"""Times that everything is faster here than on a node."""

HOLDERS = 8
CHANGES = 20
"""Pods that come or go in an hour. They hold no device."""


def quicker(pace: Pace) -> Pace:
    """Return a pace that is `FASTER`, in all its times."""
    times = {name: seconds for name, seconds in attrs.asdict(pace).items() if seconds is not None}
    return attrs.evolve(pace, **{name: seconds / FASTER for name, seconds in times.items()})


def lists(kubelet: SimulatedKubelet) -> int:
    return sum(event.method == "List" for event in kubelet.events.of(events.PodResourcesAsked))


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_lists_of_a_day(
    kubelet: SimulatedKubelet, profile: str, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """Eight pods hold devices all day, 102 others have none, and 20 come or go in an hour."""
    for module, name in ((tracker, "AFTER_EVENT"), (allocations, "FIRST_LOOK"), (allocations, "LOOK_AGAIN")):
        monkeypatch.setattr(module, name, getattr(module, name) / FASTER)

    async with connected(kubelet, Kept(*(f"w{n}" for n in range(HOLDERS))), pace=quicker(Pace())) as manager:
        for number in range(102):
            await kubelet.admit(Pod.asking({}, name=f"other-{number}"))
        for _ in range(HOLDERS):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: len(manager.holders(RESOURCE) or {}) == HOLDERS)
        await anyio.sleep(120 / FASTER)
        before = lists(kubelet)
        for number in range(CHANGES // 2):
            short = await kubelet.admit(Pod.asking({}, name=f"short-{number}"))
            await anyio.sleep(3600 / CHANGES / FASTER)
            await kubelet.delete(short.pod)
            await anyio.sleep(3600 / CHANGES / FASTER)
        of_a_day = 24.0 * (lists(kubelet) - before)
        figure(f"Lists of a day, {profile}", of_a_day, "Lists")
        assert of_a_day < (400 if kubelet.profile.serves_pods_api else 3000)


NEVER = 3600.0
SELDOM = attrs.evolve(QUICK, look=NEVER, period=NEVER, settled=NEVER)
"""No look is due unless something says so."""


async def test_a_pods_end_is_told_without_a_list_in_between(kubelet: SimulatedKubelet) -> None:
    """From 1.37 on the pods API says that a holder has ended; other pods come and go, and nothing is listed."""
    backend = Kept("w0", "w1")
    async with connected(kubelet, backend, pace=SELDOM) as manager:
        held = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: manager.holders(RESOURCE))
        before = lists(kubelet)
        for _ in range(5):
            other = await kubelet.admit(Pod.asking({}))
            await kubelet.delete(other.pod)
        await kubelet.delete(held.pod)
        await until(lambda: backend.returned, story=kubelet.events.story)
        assert lists(kubelet) == before + 2  # a device is free after two lists without it


async def test_where_the_pods_api_ends_lists_go_on(kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Kept("w0", "w1")
    pace = attrs.evolve(QUICK, settled=NEVER)
    async with connected(kubelet, backend, pace=pace) as manager:
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await until(lambda: manager.holders(RESOURCE))

        def refuse(_: bytes) -> None:
            raise IndexError

        monkeypatch.setattr(podsapi, "_told_of", refuse)  # the pod cannot be read
        await kubelet.admit(Pod.asking({}))
        before = lists(kubelet)
        await until(lambda: lists(kubelet) > before + 3, story=kubelet.events.story)
