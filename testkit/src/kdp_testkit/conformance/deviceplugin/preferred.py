"""Checks 48 to 53: GetPreferredAllocation and PreStartContainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ...protocol.wire import CallError
from ..checks import Checks, NotApplicable
from ..scene import ids, plural
from .subject import Staging

if TYPE_CHECKING:
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()

_CALL = 30.0

_KUBELETS_OWN = ("", "Deadline Exceeded", "context deadline exceeded")
"""What a call says that was ended by its deadline and not by the plugin: of nothing, of gRPC's C core, of grpc-go."""


def _offering(case: Case) -> Staging:
    """Return what the plugin must be: itself if it has preferences, else with some if the kit can give it some."""
    return Staging() if case.facts.options.preferred_allocation_available else Staging(prefers=True)


async def _asked(scene: PluginScene, available: list[str], must: list[str], size: int) -> tuple[str, ...]:
    try:
        answers = await scene.client.preferred(available, must, size, timeout=_CALL)
    except CallError as error:
        raise scene.failed(f"GetPreferredAllocation of {size} of {len(available)} failed: {error}") from None
    scene.require(len(answers) == 1, f"{plural(len(answers), 'container response')} for one container request")
    chosen = answers[0]
    scene.require(len(set(chosen)) == len(chosen), f"the answer names an id twice: {', '.join(chosen)}")
    foreign = set(chosen) - set(available)
    scene.require(not foreign, f"the answer names {ids(foreign)}, which was not available")
    return chosen


@CHECKS.add(
    48,
    "the preferred devices are available, and as many as requested",
    expected="size ids, all of must_include among them, all available, none twice",
    rule="section 7: the kubelet drops unknown and repeated ids, then fills up or trims at random",
    cure="return exactly allocation_size different ids of available_deviceIDs, those of must_include first",
)
async def _preferred(case: Case) -> str:
    async with case.connected(_offering(case)) as scene:
        free = scene.at_most(16)
        asked: set[int] = {1, max(1, len(free) // 2), len(free)}
        for size in sorted(asked):
            for must in ([], free[-1:]):
                chosen = await _asked(scene, free, must, size)
                scene.require(len(chosen) == size, f"{plural(len(chosen), 'id')} for a size of {size} of {len(free)}")
                scene.require(set(must) <= set(chosen), f"must_include {ids(must)} is not in {', '.join(chosen)}")
    return f"right for {', '.join(map(str, sorted(asked)))} of {len(free)}"


@CHECKS.add(
    49,
    "if must_include has the requested size, it is the answer",
    expected="exactly the ids of must_include",
    rule="section 7: must_include has the devices that are already chosen, and they count",
    cure="begin the answer with must_include, and stop when there are allocation_size ids",
)
async def _only_must(case: Case) -> str:
    async with case.connected(_offering(case)) as scene:
        free = scene.at_most(16)
        must = free[: max(1, len(free) // 2)]
        chosen = await _asked(scene, free, must, len(must))
        scene.require(set(chosen) == set(must), f"must_include {ids(must)} became {ids(chosen)}")
    return f"exactly {ids(must)}"


@CHECKS.add(
    50,
    "an impossible preference is no error",
    expected="more requested than available: an empty or partial answer",
    rule="section 7: an error fails the pod and can leave devices booked; an empty answer lets the kubelet choose",
    cure="never return an error from GetPreferredAllocation; return an empty list",
)
async def _impossible(case: Case) -> str:
    async with case.connected(_offering(case)) as scene:
        free = scene.some(1)
        chosen = await _asked(scene, free, [], len(free) + 3)
        chosen_of_none = await _asked(scene, [], [], 1)
        scene.check_alive()
    return f"{plural(len(chosen), 'id')} for {len(free) + 3} of {len(free)}, {len(chosen_of_none)} for 1 of none"


@CHECKS.add(
    51,
    "a call of GetPreferredAllocation that is not offered does no harm",
    expected="called although the option is false: UNIMPLEMENTED or a valid answer, no crash",
    rule="section 7: options are frozen at registration, so a call can come after they have changed",
    cure="leave the method unimplemented, or answer with an empty list",
)
async def _not_offered(case: Case) -> str:
    staging = Staging(prefers=False) if case.facts.options.preferred_allocation_available else Staging()
    async with case.connected(staging) as scene:
        if (await scene.client.options(_CALL)).preferred_allocation_available:
            raise NotApplicable("the plugin offers GetPreferredAllocation")
        free = scene.some(1)
        try:
            answers = await scene.client.preferred(free, [], 1, timeout=_CALL)
            outcome = f"{plural(len(answers), 'answer')}, {plural(sum(map(len, answers)), 'id')}"
            foreign = {device for answer in answers for device in answer} - set(free)
            scene.require(not foreign, f"the answer names {ids(foreign)}, which was not available")
        except CallError as error:
            scene.require(error.code == "UNIMPLEMENTED", f"it was answered with {error}")
            outcome = "UNIMPLEMENTED"
        scene.check_alive()
        scene.require(scene.kubelet.streams(scene.resource) == 1, "the stream ended")
    return outcome


def _preparing(case: Case, seconds: float) -> Staging:
    return Staging() if case.facts.options.pre_start_required and not seconds else Staging(prepares=seconds)


@CHECKS.add(
    52,
    "PreStartContainer can be repeated",
    expected="twice for the same devices: ok twice",
    rule="section 7: it is called before every start of a container, restarts included",
    cure="make it idempotent: reset the devices whatever state they are in",
)
async def _pre_start_twice(case: Case) -> str:
    async with case.connected(_preparing(case, 0.0)) as scene:
        devices = scene.some(1)
        scene.require((await scene.client.options(_CALL)).pre_start_required, "pre_start_required is not set")
        for time in ("first", "second"):
            try:
                await scene.client.pre_start(devices)
            except CallError as error:
                raise scene.failed(f"the {time} PreStartContainer of {ids(devices)} failed: {error}") from None
    return f"twice ok for {ids(devices)}"


@CHECKS.add(
    53,
    "a slow PreStartContainer is answered before the kubelet's deadline",
    expected="the backend takes longer than grpc-timeout: an error of the plugin's own before the deadline",
    rule="section 7: the kubelet waits 30 s; what it shows after that is its own deadline, not the reason",
    cure="read the call's deadline and answer with an error a little before it",
)
async def _slow_pre_start(case: Case) -> str:
    """Let it be slow; on a machine that is too busy for the first deadline it gets a second, longer one."""
    deadline = max(1.5, case.span(3.0))
    async with case.connected(Staging(prepares=3600.0)) as scene:
        devices = scene.some(1)
        outcome = ""
        for seconds in (deadline, 4 * deadline):
            began = anyio.current_time()
            try:
                await scene.client.pre_start(devices, timeout=seconds)
            except CallError as error:
                took = anyio.current_time() - began
                if took < seconds - 0.1 and error.detail not in _KUBELETS_OWN:
                    return f"after {took:.2f} of {seconds:g} s: {error}"
                outcome = f"only the kubelet's own deadline ended the call, after {took:.2f} s: {error}"
            else:
                raise scene.failed("PreStartContainer succeeded although the backend had not finished")
        raise scene.failed(outcome)
