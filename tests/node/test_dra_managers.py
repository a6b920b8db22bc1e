"""The simulated DRA kubelet is like the DRA manager of each minor: the same scenario, the same observation.

And a rule of the simulation that is broken is found by the same comparison.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import anyio
import attrs
import pytest
from typing_extensions import override

from kdp_testkit.dra import drivers
from kdp_testkit.dra import kubelet_process as lives
from kdp_testkit.dra.claims import ClaimCache, ClaimEntry
from kdp_testkit.dra.health import HealthCache
from kdp_testkit.dra.kubelet_process import DraKubeletProcess
from kdp_testkit.dra.profiles import PROFILES

from .dra_manager_scenarios import SCENARIOS, play_real, play_simulated, take_over
from .dra_scenarios import DRIVER
from .nodekit import Minor

pytestmark = pytest.mark.usefixtures("disturbing")

_BESIDE = 16
"""So many plays at a time: for most of its time a play waits."""

_real: dict[tuple[str, str], Any] = {}
"""What was seen with the real managers, by minor and scenario: each scenario is played once with each."""


async def _compared(
    minor: Minor, names: Iterable[str], changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Play scenarios on both sides; return what was not seen alike: scenario -> what -> real, then simulated.

    Args:
        minor: With which version.
        names: The scenarios.
        changes: By scenario the fields of the simulation's profile that are not as they should be.
    """
    limiter = anyio.CapacityLimiter(_BESIDE)
    simulated: dict[str, Any] = {}

    async def really(name: str) -> None:
        async with limiter:
            _real[minor.name, name] = await _played(lambda: play_real(SCENARIOS[name], minor))

    async def simulate(name: str) -> None:
        async with limiter:
            profile = attrs.evolve(PROFILES[minor.profile], **(changes or {}).get(name, {}))
            simulated[name] = await _played(lambda: play_simulated(SCENARIOS[name], minor, profile))

    async with anyio.create_task_group() as tasks:
        for name in names:
            if (minor.name, name) not in _real:
                tasks.start_soon(really, name)
            tasks.start_soon(simulate, name)
    return {
        name: different
        for name, seen in simulated.items()
        if (different := _differences(_real[minor.name, name], seen))
    }


async def _once_more(
    minor: Minor, names: Iterable[str], changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Compare again on both sides: on a busy machine something may have come too late, or never for both."""
    for name in names:
        del _real[minor.name, name]
    return await _compared(minor, names, changes)


async def _played(play: Callable[[], Awaitable[Any]]) -> Any:
    """Play, and once more if it could not be played to its end: on a busy machine something may come too late."""
    try:
        return await play()
    except (AssertionError, TimeoutError, ExceptionGroup):
        return await play()


def _differences(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    return {
        what: (real.get(what), simulated.get(what))
        for what in real.keys() | simulated.keys()
        if real.get(what) != simulated.get(what)
    }


async def test_the_managers_do_the_same(minor: Minor) -> None:
    found = await _compared(minor, SCENARIOS)
    found = await _once_more(minor, found)
    assert not found, json.dumps(found, indent=2)
    assert all(_real[minor.name, name] for name in SCENARIOS)


async def test_each_reads_what_the_other_remembered(minor: Minor) -> None:
    seen = await take_over(minor)
    lives = ("simulated", "real", "simulated again")
    for number, life in enumerate(lives, 1):
        first = number if PROFILES[minor.profile].answer_replaces else 1
        given = [f"{DRIVER}/device=ready-{each}" for each in range(first, number + 1)]
        assert seen[life][0] == {"main": given}, life
        assert "it burns" in seen[life][1], life
    assert seen["ends"] == (["", ""], ["NodeUnprepareResources ready", "NodeUnprepareResources fails"])
    assert seen["left"] == {}


# -- the comparison can fail -------------------------------------------------------------------------------------------


@attrs.frozen
class Rule:
    """A rule of the simulation that is broken, and the scenario that notices.

    Attributes:
        says: The rule.
        scenario: Which one notices.
        breaks: Breaks it.
    """

    says: str
    scenario: str
    breaks: Callable[[pytest.MonkeyPatch], None]

    @override
    def __str__(self) -> str:
        return f"{self.scenario}: {self.says}"


def _set(owner: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def _newest_service(driver: str, endpoint: str, services: Any) -> str:
    drivers.choose_service(driver, endpoint, services)
    return next(service for service in drivers.SERVICES if service in services)


def _releases_all(cache: ClaimCache, pod_uid: str, keys: Any) -> Any:
    for entry in cache.entries.values():
        entry.pods &= {pod_uid}
    return _release(cache, pod_uid, keys)


_release = ClaimCache.release
_wipe = DraKubeletProcess._wipe

RULES = [
    Rule("the plugin's order of versions decides", "registration", _set(lives, "choose_service", _newest_service)),
    Rule("a claim is unprepared for its last pod", "deleted_by_force", _set(ClaimCache, "release", _releases_all)),
    Rule("calls are left out", "skipping", _set(ClaimEntry, "called", lambda entry, _: list(entry.drivers))),
    Rule(
        "the newest instance is called",
        "instances",
        _set(drivers.DriverTable, "get", lambda table, name: next(iter(table.of(name)), None)),
    ),
    Rule("a claim is reserved for its pods", "refused_pods", _set(lives, "judge", lambda *_: None)),
    Rule("slices are wiped by driver", "slices", _set(DraKubeletProcess, "_wipe", lambda life, _: _wipe(life, ""))),
    Rule(
        "a driver that comes back keeps its slices", "slices", _set(drivers.DriverTable, "is_usable", lambda *_: False)
    ),
    Rule(
        "the end of a stream is the end of what it told",
        "health_of_devices",
        _set(HealthCache, "clear", lambda *_: None),
    ),
    Rule("claims outlive the kubelet", "restarts", _set(ClaimCache, "_load", lambda *_: None)),
    Rule(
        "health outlives the kubelet", "health_outlives_the_kubelet", _set(HealthCache, "load", lambda *_, **__: None)
    ),
    Rule("an answer for each claim is needed", "partial_answers", _set(ClaimCache, "answered", lambda *_: None)),
]


FLAGS = {
    "watcher_retries": "refused_registration",
    "answer_replaces": "restarts",
    "guards_unprepare": "ends_that_are_not_theirs",
    "asks_all_for_health": "asked_for_health",
    "health_says_more": "health_of_devices",
    "health_by_request": "health_by_name",
    "remembers_shares": "refusing_driver",
}
"""What differs between the minors, and the scenario that notices."""


async def test_each_difference_of_a_profile_is_noticed(minor: Minor) -> None:
    profile = PROFILES[minor.profile]
    changes: dict[str, dict[str, Any]] = {
        scenario: {flag: not getattr(profile, flag)} for flag, scenario in FLAGS.items()
    }
    changes["asked_for_health_by_default"] = {"gates": profile.gates ^ {"ResourceHealthStatus"}}
    found = await _compared(minor, changes, changes)
    found |= await _once_more(minor, changes.keys() - found.keys(), changes)
    assert found.keys() == changes.keys()


@pytest.mark.parametrize("rule", RULES, ids=str)
async def test_a_broken_rule_is_noticed(newest: Minor, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    rule.breaks(monkeypatch)
    assert await _compared(newest, [rule.scenario])
