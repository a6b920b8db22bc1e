"""``kdp conformance -- COMMAND...``: does a device plugin, in any language, do what the kubelet needs of it?

The program is started anew for each check, against a simulated kubelet in a temporary directory. Nothing of it is left
at the end, whatever it does. What it prints is kept for the report of the checks that it fails.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kdp.cli.options import Refusal
from kdp.cli.streams import shown
from kdp.daemon.process import silence_grpc

from .options import deadline_option, mode_option, profile_option

if TYPE_CHECKING:
    from ..conformance.reports import CheckResult

_PASSED = "a DRA driver is told its directories; use the placeholders or the variables"
_NOT_FOR = {
    "dra": {
        "private_mount": ("--private-mount", _PASSED),
        "cdi_dirs": ("--cdi-dir", _PASSED),
        "deadline": ("--deadline", "the kit for DRA drivers has a deadline of its own for each check"),
    },
    "device-plugin": {
        "previous": ("--previous", "only the kit for DRA drivers starts a version before this one; use --mode dra"),
        "extended_resource": ("--extended-resource", "a device plugin has the resource itself; use --mode dra"),
    },
}
"""What the command line may not have in each mode: the parameter, its option, and why."""


@click.command(
    "conformance",
    short_help="Judge a plugin's program, in any language.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@mode_option("Whether the program is a device plugin or a DRA driver.")
@profile_option
@click.option("--only", metavar="ID,...", help="Run these checks only.")
@click.option("--quick", is_flag=True, help="Leave out the checks that must wait a minute or more.")
@click.option(
    "--output",
    type=click.Choice(["table", "json", "junit", "markdown"]),
    default="table",
    show_default=True,
    envvar="KDP_OUTPUT",
    help="How the report is written to stdout.  [KDP_OUTPUT]",
)
@click.option("--fail", metavar="COMMAND", help="Shell command that makes device {id} fail.")
@click.option("--heal", metavar="COMMAND", help="Shell command that makes the failed device {id} work again.")
@click.option("--vanish", metavar="COMMAND", help="Shell command that takes device {id} away.")
@click.option("--add", metavar="COMMAND", help="Shell command that brings device {id}, or a new one if {id} is empty.")
@click.option("--previous", metavar="COMMAND", help="Program of the DRA driver's version before this one.")
@click.option(
    "--extended-resource",
    metavar="NAME",
    default="",
    help="Extended resource that a device plugin for the DRA driver's devices has.",
)
@click.option(
    "--private-mount",
    is_flag=True,
    help=(
        "Show the simulated directories to the program at /var/lib/kubelet, in a mount namespace of its own "
        "(needs root)."
    ),
)
@click.option(
    "--cdi-dir",
    "cdi_dirs",
    metavar="DIR",
    multiple=True,
    default=("/etc/cdi", "/var/run/cdi"),
    show_default=True,
    help="Where the plugin's CDI specs are; may be repeated.",
)
@deadline_option(30.0, "How long the program may take to register when it is met first.", most=3600)
def command(
    words: tuple[str, ...],
    mode: str,
    profile: str,
    only: str | None,
    quick: bool,
    output: str,
    fail: str | None,
    heal: str | None,
    vanish: str | None,
    add: str | None,
    previous: str | None,
    extended_resource: str,
    private_mount: bool,
    cdi_dirs: tuple[str, ...],
    deadline: float,
) -> None:
    """Run the conformance checks against the program of a device plugin or a DRA driver, in any language.

    The program learns where the kubelet is by placeholders in its arguments, by variables, or with --private-mount by
    the usual path. It registers with kubelet.sock or through the plugin watcher, as it does on a node.

    \b
    Placeholders                        Variables
      {root}               ...            KDP_KUBELET_ROOT
      {device_plugins}     ...            KDP_DEVICE_PLUGIN_DIR
      {plugins_registry}   ...            KDP_PLUGINS_REGISTRY_DIR
      {pod_resources}      ...            KDP_POD_RESOURCES_DIR

    \b
    Of a DRA driver also
      {kubeconfig}                        KUBECONFIG, KDP_KUBECONFIG
      {node}               node0          NODE_NAME, KDP_NODE_NAME
      {cdi}                ...            CDI_ROOT, KDP_CDI_DIR
      {state}              ...            KDP_STATE_DIR
      {pod_uid}            (two overlap)  POD_UID, KDP_POD_UID

    \b
    For example:
      kdp conformance -- kdp run widgets.py:Widgets
      kdp conformance --quick -- ./plugin --socket-dir {device_plugins}
      kdp conformance --mode dra -- kdp run widgets.py:Widgets

    \b
    Exit codes:
      0  no check failed
      1  a check failed, or the program could not be judged
      2  something in the command line is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    import anyio

    silence_grpc()
    from kdp.cli.interruption import Interrupted, unless_interrupted

    from .. import PROFILES
    from ..conformance import ConformanceReport, run_checks
    from ..conformance.deviceplugin.command import CommandSubject
    from ..conformance.program import shell_levers
    from ..conformance.render import render

    if profile not in PROFILES:
        raise Refusal(f"--profile: {profile!r} is not known; known are {', '.join(PROFILES)}")
    _check_mode(mode)
    if shutil.which(words[0]) is None:
        raise Refusal(f"there is no program {words[0]!r}: neither a file that can be run nor in PATH")
    levers = {"fail": fail, "heal": heal, "vanish": vanish, "add": add}
    pulled = shell_levers({name: text for name, text in levers.items() if text is not None})
    ids = _ids(only)

    def tell(result: CheckResult) -> None:
        click.echo(f"{result.check.id:>3}  {result.status}  {result.check.name}", err=True)

    async def judge() -> ConformanceReport:
        if mode == "dra":
            from ..conformance.dra.command import DraCommandSubject
            from ..conformance.dra.runner import run_dra_checks

            before = DraCommandSubject(shlex.split(previous), levers=pulled) if previous else None
            driver = DraCommandSubject(words, levers=pulled, previous=before, extended=extended_resource)
            return await run_dra_checks(driver, profile=profile, only=ids, quick=quick, tell=tell)
        return await run_checks(
            CommandSubject(words, levers=pulled, mount=private_mount),
            profile=profile,
            only=ids,
            quick=quick,
            cdi_dirs=[Path(directory) for directory in cdi_dirs],
            meeting=deadline,
            tell=tell,
        )

    try:
        report = anyio.run(unless_interrupted, judge)
    except Interrupted as signal:
        click.echo(f"interrupted by {signal}", err=True)
        raise SystemExit(1) from None
    except ValueError as wrong:
        raise Refusal(str(wrong)) from None
    text = render(report, output)
    click.echo(shown(text) if output == "table" else text)
    if report.left_out:
        click.echo(f"left out by --quick: {', '.join(map(str, report.left_out))}", err=True)
    raise SystemExit(0 if report.is_passed else 1)


def _check_mode(mode: str) -> None:
    context = click.get_current_context()
    for parameter, (option, why) in _NOT_FOR[mode].items():
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            raise Refusal(f"{option} is not for --mode {mode}: {why}")


def _ids(only: str | None) -> list[int] | None:
    if only is None:
        return None
    try:
        return [int(part) for part in only.split(",")]
    except ValueError:
        raise Refusal(f"--only: {only!r} must be numbers of checks with commas between; valid is 1,17,33") from None
