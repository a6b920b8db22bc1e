"""Runs the checks of device plugins: those that do not disturb one another together, the others alone.

First the plugin is met once: which resource, which devices, which route. A plugin that cannot be met is judged by one
failure that says what happened instead; nothing else is decided about it.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs

from ... import events
from ...profiles import DEFAULT_PROFILE, profile_named
from ...protocol.wire import PluginOptions
from ..checks import Failed, NotApplicable, Route
from ..reports import CheckResult, ConformanceReport
from ..runner import Progress, Runner, verdict_of
from .backend import BackendSubject, MakeBackend
from .catalogue import CHECKS
from .scene import Case, MakeKubelet, PluginFacts, simulated

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from ..checks import Check
    from ..instance import Instance, Levers
    from .subject import Subject

MEETING = 30.0
"""Seconds that the plugin has to register when it is met first."""

_CURE_OF_STRANGER = (
    "read the plugin's log for why it does not register; it must find kubelet.sock in the directory it was given, call "
    "Register, and serve ListAndWatch"
)

SETTLED = 0.3
"""Seconds without news after which no further resource is expected."""


FILLED = 1.0
"""Seconds after which a plugin is expected to have a healthy device; a tenth of the seconds that it gets."""


async def run_checks(
    subject: Subject,
    *,
    profile: str = DEFAULT_PROFILE,
    resource: str | None = None,
    only: Iterable[int] | None = None,
    skip: Iterable[int] = (),
    quick: bool = False,
    jobs: int | None = None,
    cdi_dirs: Sequence[str | os.PathLike[str]] = ("/etc/cdi", "/var/run/cdi"),
    patience: float = 1.0,
    scale: float = 1.0,
    meeting: float = MEETING,
    progress: Progress | None = None,
    kubelet: MakeKubelet = simulated,
) -> ConformanceReport:
    """Run checks against a plugin.

    Args:
        subject: The plugin.
        profile: Which kubelet.
        resource: Which of the plugin's resources is judged; default: the one with most healthy devices.
        only: Ids; default: all.
        skip: Ids to leave out.
        quick: Leave out those that must wait long.
        jobs: Number of parallel checks; default: the subject's `width`.
        cdi_dirs: Where the plugin's CDI specs are.
        patience: Factor on every verdict's limit; for the kit's own tests.
        scale: Factor on the times that scenarios name; for the kit's own tests.
        meeting: Seconds that the plugin has to register when it is met first.
        progress: Follows the run.
        kubelet: Makes the kubelets that the checks need; default: simulated ones.

    Raises:
        ValueError: There is no such profile, resource, or check, or no check to run.
    """
    name = profile_named(profile).name
    runner = Runner(CHECKS, profile=name, only=only, skip=skip, quick=quick, progress=progress)
    case = Case(
        subject=subject,
        facts=PluginFacts(resource="", resources=(), healthy=(), devices=0, options=PluginOptions(), route="kubelet"),
        profile=name,
        patience=patience,
        scale=scale,
        cdi_dirs=tuple(Path(directory) for directory in cdi_dirs),
        kubelet=kubelet,
    )
    try:
        facts = await _meet(case, meeting, resource)
    except (Failed, NotApplicable) as stranger:
        _judge_stranger(runner, str(stranger))
        return runner.report()
    if resource not in (None, *facts.resources):
        raise ValueError(f"the plugin has no resource {resource!r}; it serves {', '.join(facts.resources)}")
    subject.tell(facts.resource)
    await runner.judge_all(
        partial(_play, attrs.evolve(case, facts=facts)),
        jobs=jobs or subject.width,
        shares_hardware=subject.shares_hardware,
        stretch=3 * scale,
    )
    return runner.report()


async def _play(case: Case, check: Check[Case]) -> str:
    if case.facts.route not in check.routes:
        raise NotApplicable(
            "the plugin is found by the plugin watcher and never calls Register"
            if case.facts.route == "watcher"
            else "the plugin calls Register and leaves the plugin watcher alone"
        )
    return await check.play(case)


async def check_backend(
    make: MakeBackend,
    *,
    levers: Levers | None = None,
    profile: str = DEFAULT_PROFILE,
    registration: Route = "kubelet",
    resource: str | None = None,
    only: Iterable[int] | None = None,
    skip: Iterable[int] = (),
    quick: bool = False,
    jobs: int | None = None,
    host_root: str | os.PathLike[str] = "/",
    cdi_dirs: Sequence[str | os.PathLike[str]] = ("/etc/cdi", "/var/run/cdi"),
) -> ConformanceReport:
    """Run the checks against a vendor's class in this process, on any machine and without the hardware.

    ```python
    import pytest


    @pytest.mark.anyio
    async def test_widgets_conform() -> None:
        (await check_backend(Widgets, quick=True)).raise_if_failed()
    ```

    Args:
        make: Makes a fresh backend, each time a new one: the class, if it needs no arguments.
        levers: How the hardware is made to fail, to heal, to vanish and to appear. Without them the kit changes what
            the backend's hooks return: then kdp and the backend's edits are judged, but not how it notices a fault.
        profile: Which kubelet.
        registration: By kubelet.sock, or through the plugin watcher.
        resource: Which of the backend's resources is judged; default: the one with most healthy devices.
        only: Ids of checks; default: all.
        skip: Ids of checks that are left out.
        quick: Leave out the checks that must wait long.
        jobs: How many checks run beside one another; default: 8.
        host_root: Where the node's root directory is, for backends that read it.
        cdi_dirs: Where the backend's CDI specs are.

    Raises:
        ValueError: There is no such profile, resource, or check, or no check is left to run.
    """
    subject = BackendSubject(make, levers=levers, registration=registration, host_root=host_root)
    return await run_checks(
        subject,
        profile=profile,
        resource=resource,
        only=only,
        skip=skip,
        quick=quick,
        jobs=jobs,
        cdi_dirs=cdi_dirs,
    )


def _judge_stranger(runner: Runner[Case], saw: str) -> None:
    """Judge a plugin that never registered: one check has failed, of the others nothing can be said."""
    first, *others = runner.chosen
    # That check's own cure is about something else, if not all checks were chosen.
    judged = attrs.evolve(first, cure=_CURE_OF_STRANGER)
    runner.take(CheckResult(check=judged, status="failed", saw=saw))
    reason = f"the plugin did not register, see check {first.id}"
    for check in others:
        runner.take(CheckResult(check=check, status="not_applicable", saw=reason))


async def _meet(case: Case, seconds: float, resource: str | None) -> PluginFacts:
    facts: PluginFacts | None = None
    try:
        async with case.node() as scene:
            instance = await scene.start()
            kubelet = scene.kubelet

            def resources() -> list[str]:
                return sorted(
                    {e.resource for e in kubelet.events.of(events.ListReceived) if kubelet.streams(e.resource)}
                )

            await scene.until(resources, seconds, "the plugin did not register and open a stream")
            with anyio.move_on_after(case.limit(FILLED)):
                while not any(d.health == "Healthy" for name in resources() for d in kubelet.devices(name).values()):
                    scene.check_alive()
                    await kubelet.events.change()
            await _settle(scene.kubelet.events, instance, SETTLED if case.subject.has_process else SETTLED / 3)
            healthy = {
                name: sorted(d.id for d in kubelet.devices(name).values() if d.health == "Healthy")
                for name in resources()
            }
            if not healthy:
                raise scene.failed("the plugin's stream ended at once, and none was open after that")
            most = max(healthy, key=lambda name: (len(healthy[name]), name))
            best = resource if resource in healthy else most
            routes: dict[bool, Route] = {True: "kubelet", False: "watcher"}
            facts = PluginFacts(
                resource=best,
                resources=tuple(healthy),
                healthy=tuple(healthy[best]),
                devices=len(kubelet.devices(best)),
                options=await kubelet.plugin(best).options(10.0),
                route=routes[bool(kubelet.events.of(events.RegisterReceived))],
            )
    except BaseExceptionGroup as group:
        raise verdict_of(group) from group
    assert facts is not None
    return facts


async def _settle(log: events.EventLog, instance: Instance, settled: float) -> None:
    """Wait until no further resource comes and all have listed: only the plugin knows how many it has."""

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
