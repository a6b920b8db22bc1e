"""Runs checks: those that do not disturb one another at the same time, those that measure or change the hardware alone.

First the plugin is met once: which resource, which devices, which route. Whoever cannot be met is judged by one failure
that says what happened instead; nothing else is decided about him.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import attrs

from .. import events
from ..kubelet import NotReached
from ..pods import AdmissionError, ContainerStartError, ScenarioError
from ..profiles import DEFAULT_PROFILE, profile_named
from ..wire import CallError, PluginOptions
from .backend import BackendSubject, MakeBackend
from .catalogue import CHECKS
from .kubelet import MakeKubelet, simulated
from .model import CheckResult, ConformanceCheck, ConformanceReport, Failed, NotApplicable, Route, Status
from .scene import Case, Facts
from .subject import Instance, Levers, Staging, Subject

if TYPE_CHECKING:
    import os

__all__ = ["check_backend", "run_checks"]

logger = logging.getLogger(__name__)

LONGEST = 120.0
"""Seconds that a check may take besides those that it must wait."""

MEETING = 30.0
"""Seconds that the plugin has to register when it is met first."""

SETTLED = 0.3
"""Seconds without news after which no further resource is expected."""

Tell = Callable[[CheckResult], None]


async def run_checks(
    subject: Subject,
    *,
    profile: str = DEFAULT_PROFILE,
    only: Iterable[int] | None = None,
    quick: bool = False,
    cdi_dirs: Sequence[str | os.PathLike[str]] = ("/etc/cdi", "/var/run/cdi"),
    patience: float = 1.0,
    scale: float = 1.0,
    meeting: float = MEETING,
    tell: Tell | None = None,
    kubelet: MakeKubelet = simulated,
) -> ConformanceReport:
    """Run checks against a plugin.

    Args:
        subject: The plugin.
        profile: Which kubelet.
        only: Ids; default: all.
        quick: Leave out those that must wait long.
        cdi_dirs: Where the plugin's CDI specs are.
        patience: Factor on every verdict's limit; for the kit's own tests.
        scale: Factor on the times that scenarios name; for the kit's own tests.
        meeting: Seconds that the plugin has to register when it is met first.
        tell: Called with each result as it comes.
        kubelet: Makes the kubelets that the checks need; default: simulated ones.

    Raises:
        ValueError: There is no such profile or no check with such an id.
    """
    chosen = _chosen(only)
    name = profile_named(profile).name
    left_out = tuple(check.id for check in chosen if quick and check.waits and only is None)
    chosen = [check for check in chosen if check.id not in left_out]
    results: list[CheckResult] = []

    def take(result: CheckResult) -> None:
        results.append(result)
        if tell is not None:
            tell(result)

    case = Case(
        subject=subject,
        facts=Facts(resource="", resources=(), healthy=(), devices=0, options=PluginOptions(), route="kubelet"),
        profile=name,
        patience=patience,
        scale=scale,
        cdi_dirs=tuple(Path(directory) for directory in cdi_dirs),
        kubelet=kubelet,
    )
    try:
        facts = await _meet(case, meeting)
    except (Failed, NotApplicable) as stranger:
        _judge_stranger(chosen, str(stranger), take)
        return ConformanceReport(profile=name, results=tuple(results), left_out=left_out)
    case = attrs.evolve(case, facts=facts)
    if isinstance(subject, BackendSubject):
        subject.tell(facts.resource)
    alone = [check for check in chosen if check.alone or (check.levers and subject.shares_hardware)]
    # What takes devices away comes last.
    alone.sort(key=lambda check: ("vanish" in check.levers, "add" in check.levers, bool(check.levers)))
    waiting = [check for check in chosen if check.lasts and check not in alone]
    together = [check for check in chosen if check not in alone and check not in waiting]
    limiter = anyio.CapacityLimiter(subject.width)

    async def run(check: ConformanceCheck) -> None:
        take(await _run(check, case))

    async def run_in_turn(check: ConformanceCheck) -> None:
        async with limiter:
            await run(check)

    async with anyio.create_task_group() as tasks:
        for check in waiting:
            tasks.start_soon(run, check)
        async with anyio.create_task_group() as others:
            for check in together:
                others.start_soon(run_in_turn, check)
        for check in alone:
            await run(check)
    return ConformanceReport(profile=name, results=tuple(results), left_out=left_out)


async def check_backend(
    make: MakeBackend,
    *,
    levers: Levers | None = None,
    profile: str = DEFAULT_PROFILE,
    registration: Route = "kubelet",
    only: Iterable[int] | None = None,
    quick: bool = False,
    host_root: str | os.PathLike[str] = "/",
    cdi_dirs: Sequence[str | os.PathLike[str]] = ("/etc/cdi", "/var/run/cdi"),
) -> ConformanceReport:
    """Run the checks against a vendor's class in this process, on any machine and without the hardware.

    ```python
    async def test_widgets_conform() -> None:
        (await check_backend(Widgets, quick=True)).raise_if_failed()
    ```

    Args:
        make: Makes a fresh backend, each time a new one: the class, if it needs no arguments.
        levers: How the hardware is made to fail, to heal, to vanish and to appear. Without them the kit changes what the
            backend's hooks return: then kdp and the backend's edits are judged, but not how it notices a fault.
        profile: Which kubelet.
        registration: By kubelet.sock, or through the plugin watcher.
        only: Ids of checks; default: all.
        quick: Leave out the checks that must wait long.
        host_root: Where the node's root directory is, for backends that read it.
        cdi_dirs: Where the backend's CDI specs are.

    Raises:
        ValueError: There is no such profile or no check with such an id.
    """
    subject = BackendSubject(make, levers=levers, registration=registration, host_root=host_root)
    return await run_checks(subject, profile=profile, only=only, quick=quick, cdi_dirs=cdi_dirs)


def _chosen(only: Iterable[int] | None) -> list[ConformanceCheck]:
    if only is None:
        return list(CHECKS)
    known = {check.id: check for check in CHECKS}
    wanted = set(only)
    unknown = sorted(wanted - known.keys())
    if unknown:
        raise ValueError(f"there is no check {unknown[0]}; the ids are {min(known)} to {max(known)}")
    return [known[id] for id in sorted(wanted)]


def _judge_stranger(chosen: Sequence[ConformanceCheck], saw: str, take: Tell) -> None:
    """Judge a plugin that never registered: one check has failed, of the others nothing can be said."""
    for number, check in enumerate(chosen):
        status: Status = "failed" if number == 0 else "not_applicable"
        reason = saw if number == 0 else f"the plugin did not register, see check {chosen[0].id}"
        take(CheckResult(check=check, status=status, saw=reason))


async def _meet(case: Case, seconds: float) -> Facts:
    facts: Facts | None = None
    try:
        async with case.node() as scene:
            instance = await scene.start_plugin(Staging())
            kubelet = scene.kubelet

            def resources() -> list[str]:
                return sorted(
                    {e.resource for e in kubelet.events.of(events.ListReceived) if kubelet.streams(e.resource)}
                )

            await scene.until(resources, seconds, "the plugin did not register and open a stream")
            await _settle(scene.kubelet.events, instance, SETTLED if case.subject.has_process else SETTLED / 3)
            healthy = {
                name: sorted(d.id for d in kubelet.devices(name).values() if d.health == "Healthy")
                for name in resources()
            }
            if not healthy:
                raise scene.failed("the plugin's stream ended at once, and none was open after that")
            best = max(healthy, key=lambda name: (len(healthy[name]), name))
            routes: dict[bool, Route] = {True: "kubelet", False: "watcher"}
            facts = Facts(
                resource=best,
                resources=tuple(healthy),
                healthy=tuple(healthy[best]),
                devices=len(kubelet.devices(best)),
                options=await kubelet.plugin(best).options(10.0),
                route=routes[bool(kubelet.events.of(events.RegisterReceived))],
            )
    except BaseExceptionGroup as group:
        raise _verdict(group) from group
    assert facts is not None
    return facts


async def _settle(log: events.EventLog, instance: Instance, settled: float) -> None:
    """Wait until no further resource has come for a moment, and all have listed: only the plugin knows how many it has."""

    def known() -> int:
        kinds = (events.RegisterReceived, events.PluginInfoReceived, events.StreamOpened)
        return sum(isinstance(event, kinds) for event in log)

    def is_owing_a_list() -> bool:
        listed = {event.resource for event in log.of(events.ListReceived)}
        return any(event.resource not in listed for event in log.of(events.StreamOpened))

    count, since = known(), time.monotonic()
    until = since + 5.0
    while (
        (now := time.monotonic()) < until and (now < since + settled or is_owing_a_list()) and instance.ending is None
    ):
        with anyio.move_on_after(0.05):
            await log.change()
        if known() != count:
            count, since = known(), time.monotonic()


async def _run(check: ConformanceCheck, case: Case) -> CheckResult:
    began = time.monotonic()
    status: Status = "passed"
    try:
        saw = await _play(check, case)
    except Failed as failed:
        status, saw = "failed", str(failed)
    except NotApplicable as reason:
        status, saw = "not_applicable", str(reason)
    return CheckResult(check=check, status=status, saw=saw, seconds=time.monotonic() - began)


async def _play(check: ConformanceCheck, case: Case) -> str:
    route = case.facts.route
    if route not in check.routes:
        raise NotApplicable(
            "the plugin is found by the plugin watcher and never calls Register"
            if route == "watcher"
            else "the plugin calls Register and leaves the plugin watcher alone"
        )
    longest = LONGEST + 3 * case.span(check.waits)
    try:
        with anyio.fail_after(longest):
            return await check.play(case)
    except (Failed, NotApplicable):
        raise
    except BaseExceptionGroup as group:
        raise _verdict(group) from group
    except TimeoutError:
        raise Failed(f"the scenario did not come to its end within {longest:.0f} s") from None
    except _SAID as error:
        raise Failed(_told(error)) from error


_SAID = (CallError, NotReached, AdmissionError, ContainerStartError, ScenarioError, OSError)
"""Errors of the simulated kubelet: what a plugin caused by not doing what a check took for granted."""


def _told(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, CallError):
        return f"a call failed: {text}"
    if isinstance(error, AdmissionError):
        return f"a pod was refused: {text}"
    return text or type(error).__name__


def _verdict(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a group of exceptions says of the plugin: the clearest of them."""
    flat = list(_flat(group))
    for kinds in ((Failed,), (NotApplicable,), _SAID):
        for error in flat:
            if isinstance(error, kinds):
                return error if isinstance(error, (Failed, NotApplicable)) else Failed(_told(error))
    return group


def _flat(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error
