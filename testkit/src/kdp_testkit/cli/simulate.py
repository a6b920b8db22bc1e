"""``kdp simulate TARGET``: does the plugin or the DRA driver work, without a cluster and without root?

The plugin runs as a process of its own (``kdp run``), against a simulated kubelet in a temporary directory. A fixed
scenario (`scenario`, `dra_scenario`) goes through what every plugin must survive; each step is told with its time, and
each figure is measured in this run. No code of the vendor runs in this process.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from kdp.command.failures import Refusal
from kdp.command.options import backend_options, format_option, refusing, setting_options
from kdp.command.streams import shown
from kdp.daemon.process import silence_grpc
from kdp.daemon.settings import SETTINGS
from kdp.errors import ConfigurationError

from .options import check_profile, deadline_option, mode_option, profile_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .scenario_base import BaseScenario


@click.command("simulate", short_help="Try a class against a simulated kubelet.")
@click.argument("target", metavar="TARGET")
@backend_options
@mode_option("Whether the class is tried as a device plugin or as a DRA driver.  [KDP_MODE]", envvar="KDP_MODE")
@setting_options(
    "registration",
    "poll_interval",
    "host_root",
    "snapshot",
    "driver_name",
    "health_taint",
    "device_status",
    "device_metadata",
)
@profile_option
@deadline_option(20.0, "How long one step may take.")
@click.option(
    "--lenient",
    is_flag=True,
    help="Pass also if the plugin's log has warnings or errors, or if there is no healthy device.",
)
@format_option(help="Text for people, or JSON for programs, one object a line.")
def command(
    target: str,
    assignments: tuple[str, ...],
    config: Path | None,
    mode: str,
    profile: str,
    deadline: float,
    lenient: bool,
    format: str,
    **flags: str | None,
) -> None:
    """Try a class against a simulated kubelet, in a temporary directory, and tell what happens.

    The plugin must register, list its devices, answer for pods, come back after the kubelet was killed and started
    again, and stop when asked to. It runs as a process of its own; the real kubelet is not touched.

    Pods ask for one device, for two, for as many as each NUMA node has, and for all. A backend may refuse several with
    kdp.AllocationError. Where the pods of one resource hold what another one needs, they are ended first; the plugin
    notices that after half a minute.

    Warnings and errors in the plugin's log are shown at the end. With any of them, or if no resource has a healthy
    device, it has failed, unless --lenient is given. What the simulation itself causes is passed over: words about
    the kubelet's end, about refused requests, and about devices whose health changes.

    With --mode dra it is tried as a DRA driver, with a simulated API server as well. It must publish its devices, and
    prepare and undo claims of one device, of two, and of all up to eight, of each resource. One more claim has
    two requests. After the kubelet's restart it must publish its devices again.

    \b
    Exit codes:
      0  passed
      1  the plugin failed, logged a warning or an error, or had no healthy
         device; the last line says why, and its log follows on stderr
      2  the target, a parameter or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    import anyio

    check_profile(profile, mode)
    silence_grpc()
    from .scenario_base import Misconfigured, ScenarioFailed

    arguments = [target, *(part for text in assignments for part in ("--set", text))]
    if config is not None:
        arguments += ["--config", str(config)]
    for name, text in flags.items():
        if text is not None:
            arguments += [f"--{name.replace('_', '-')}", text]
    teller = _JsonTeller() if format == "json" else _Teller()
    with refusing():
        scenario = _scenario(mode, arguments, flags, profile=profile, deadline=deadline, tell=teller.tell)
        scenario.is_lenient = lenient
    try:
        anyio.run(scenario.run)
        for complaint in scenario.complaints:
            teller.tell("complaint", f"the {scenario.WHAT}'s log: {complaint}", {"line": complaint})
        if scenario.complaints and not lenient:
            raise ScenarioFailed("every step passed, but the log has warnings or errors; mend them, or pass --lenient")
    except Misconfigured as error:
        raise Refusal(str(error)) from None
    except ScenarioFailed as error:
        teller.tell("failed", f"failed: {error}", {"reason": str(error)})
        if scenario.log:
            click.echo(f"the {scenario.WHAT}'s log:", err=True)
            click.echo("\n".join(f"  {shown(line)}" for line in scenario.log), err=True)
        raise SystemExit(1) from None
    teller.tell("passed", "passed", {})


def _scenario(mode: str, arguments: list[str], flags: Mapping[str, str | None], **more: Any) -> BaseScenario:
    if mode == "device-plugin":
        from .scenario import Scenario

        return Scenario(arguments, **more)
    try:
        from .dra_scenario import DraScenario
    except ImportError as error:
        raise ConfigurationError(
            f"--mode dra: {error}; install kdp with its extra kube: pip install 'kdp-sdk[cli,kube]'"
        ) from None
    status = flags.get("device_status") or os.environ.get(SETTINGS["device_status"].variable)
    return DraScenario(arguments, tells_status=status == "on", **more)


class _Teller:
    """Prints each thing that happens as a line for people, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def tell(self, event: str, line: str, fields: Mapping[str, object], *, at: float | None = None) -> None:
        """Tell one thing that happened, at this time of `time.monotonic`; default: now."""
        seconds = max(0.0, (time.monotonic() if at is None else at) - self._start)
        self._write(event, seconds, line, fields)

    def _write(self, event: str, seconds: float, line: str, fields: Mapping[str, object]) -> None:
        first, *rest = shown(line).split("\n")
        colour = {"failed": "red", "passed": "green"}.get(event)
        click.echo(f"{seconds:8.3f} s  " + (click.style(first, fg=colour, bold=True) if colour else first))
        for more in rest:
            click.echo(f"            {more}")


class _JsonTeller(_Teller):
    """The same as JSON lines."""

    @override
    def _write(self, event: str, seconds: float, line: str, fields: Mapping[str, object]) -> None:
        click.echo(json.dumps({"time": round(seconds, 6), "event": event, **fields}))
