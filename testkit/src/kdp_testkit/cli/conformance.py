"""``kdp conformance TARGET`` or ``-- COMMAND...``: does a plugin, in any language, do what the kubelet needs of it?

A TARGET is judged as the program ``kdp run TARGET``. The program is started anew for each check, against a simulated
kubelet in a temporary directory. Nothing of it is left at the end, whatever it does. What it prints is kept for the
report of the checks that it fails.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from typing_extensions import override

from kdp.command.failures import Failure, Refusal
from kdp.command.invocation import Invocation
from kdp.command.options import backend_options, format_option, refusing, setting_options
from kdp.command.streams import shown
from kdp.daemon.plan import host_of
from kdp.daemon.process import silence_grpc
from kdp.daemon.setting import GivenValue
from kdp.daemon.settings import SETTINGS
from kdp.daemon.sources import from_environment, resolve_some
from kdp.hardware import Host

from .options import (
    check_private_mount,
    check_profile,
    deadline_option,
    mode_option,
    private_mount_option,
    profile_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..conformance.checks import ConformanceCheck

_PASSED = "the kit passes its directories to a DRA driver; use the placeholders or the variables"
_NOT_FOR = {
    "dra": {
        "private_mount": ("--private-mount", _PASSED),
        "cdi_dirs": ("--cdi-dir", _PASSED),
        "deadline": ("--deadline", "the kit for DRA drivers has a deadline of its own for each check"),
        "resource": ("--resource", "a DRA driver's devices have no resource; all of them are judged"),
    },
    "device-plugin": {
        "previous": ("--previous", "only the kit for DRA drivers starts a version before this one; use --mode dra"),
        "extended_resource": ("--extended-resource", "a device plugin has the resource itself; use --mode dra"),
    },
}
"""What the command line may not have in each mode: the parameter, its option, and why."""

_OF_TARGETS: Final = {
    "assignments": "--set",
    "config": "--config",
    "host_root": "--host-root",
    "snapshot": "--snapshot",
}
"""What the command line may have for a TARGET only: the parameter, and its option."""

_IS_PROGRAM: Final = "kdp.conformance.is_program"


class _Command(click.Command):
    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_IS_PROGRAM] = "--" in args
        return super().parse_args(ctx, args)


@click.command(
    "conformance",
    cls=_Command,
    short_help="Judge a class, or a plugin's program in any language.",
)
@click.argument("words", metavar="TARGET | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@backend_options
@setting_options("host_root", "snapshot")
@mode_option("Whether it is judged as a device plugin or as a DRA driver.")
@profile_option
@click.option("--resource", metavar="NAME", help="Judge this resource; default: the one with most healthy devices.")
@click.option("--only", metavar="ID,...", help="Run these checks only.")
@click.option("--skip", metavar="ID,...", help="Leave these checks out.")
@click.option("--list", "is_list", is_flag=True, help="List the checks of the mode, and run none.")
@click.option("--quick", is_flag=True, help="Leave out the checks that must wait a minute or more.")
@click.option(
    "--jobs",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How many checks run beside one another.",
)
@format_option("text", "json", "junit", "markdown", help="How the report is written to stdout.")
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
@private_mount_option("the program")
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
    assignments: tuple[str, ...],
    config: Path | None,
    mode: str,
    profile: str,
    resource: str | None,
    only: str | None,
    skip: str | None,
    is_list: bool,
    quick: bool,
    jobs: int,
    format: str,
    fail: str | None,
    heal: str | None,
    vanish: str | None,
    add: str | None,
    previous: str | None,
    extended_resource: str,
    private_mount: bool,
    cdi_dirs: tuple[str, ...],
    deadline: float,
    **flags: str | None,
) -> None:
    """Run the conformance checks against a class, or against a device plugin or DRA driver in any language.

    A TARGET is judged as 'kdp run TARGET'. After '--' comes the COMMAND that starts a program.

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
      kdp conformance widgets.py:Widgets --quick
      kdp conformance --quick -- ./plugin --socket-dir {device_plugins}
      kdp conformance widgets.py:Widgets --mode dra

    \b
    Exit codes:
      0  no check failed
      1  a check failed, or the program could not be judged
      2  the target, a parameter, an option or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    import anyio

    silence_grpc()
    from .interruption import Interrupted, unless_interrupted

    if is_list:
        _list(mode, format)
        return
    from ..conformance import ConformanceReport, run_checks
    from ..conformance.deviceplugin.subject import CommandSubject
    from ..conformance.program import shell_levers
    from ..conformance.reports import end_of, render
    from .progress import shown_progress

    check_profile(profile, mode)
    _check_mode(mode)
    check_private_mount(private_mount)
    program, host = _program(words, assignments, config, flags)
    levers = {"fail": fail, "heal": heal, "vanish": vanish, "add": add}
    pulled = shell_levers({name: text for name, text in levers.items() if text is not None})
    chosen: Any = {
        "profile": profile,
        "only": None if only is None else _ids("--only", only),
        "skip": _ids("--skip", skip) if skip else (),
        "quick": quick,
        "jobs": jobs,
    }
    progress = shown_progress(is_text=format == "text")

    async def judge() -> ConformanceReport:
        if mode == "dra":
            from ..conformance.dra.runner import run_dra_checks
            from ..conformance.dra.subject import DraCommandSubject

            before = DraCommandSubject(_split(previous), levers=pulled) if previous else None
            driver = DraCommandSubject(program, levers=pulled, previous=before, extended=extended_resource)
            return await run_dra_checks(driver, progress=progress, **chosen)
        return await run_checks(
            CommandSubject(program, levers=pulled, mount=private_mount, node_root=host.root),
            resource=resource,
            cdi_dirs=[Path(directory) for directory in cdi_dirs],
            meeting=deadline,
            progress=progress,
            **chosen,
        )

    interrupted = ""
    try:
        report = anyio.run(unless_interrupted, judge)
    except Interrupted as signal:
        interrupted = (
            f"interrupted by {signal}; the report has the {len(progress.results)} checks that were judged before"
        )
        report = ConformanceReport(profile=profile, results=tuple(progress.results))
    except ValueError as wrong:
        raise Refusal(str(wrong)) from None
    finally:
        progress.finish()
    text = end_of(report) if progress.is_report else render(report, format)
    click.echo(shown(text) if format == "text" else text)
    if interrupted:
        raise Failure(interrupted)
    raise SystemExit(0 if report.is_passed else 1)


def _list(mode: str, format: str) -> None:
    checks: Sequence[ConformanceCheck]
    if mode == "dra":
        from ..conformance.dra.catalogue import CHECKS as checks
    else:
        from ..conformance.deviceplugin.catalogue import CHECKS as checks
    if format == "json":
        click.echo(json.dumps({"checks": [{"id": each.id, "name": each.name} for each in checks]}, indent=2))
    elif format == "text":
        click.echo("\n".join(f"{each.id:>3}  {each.name}" for each in checks))
    else:
        raise Refusal(f"--list: there is no report that --format {format} could write; give text or json")


def _program(
    words: Sequence[str], assignments: Sequence[str], config: Path | None, flags: Mapping[str, str | None]
) -> tuple[Sequence[str], Host]:
    """Return the command of the judged plugin, and the node of the paths in its replies.

    A recorded node lasts as long as the returned `kdp.hardware.Host`. All instances of a TARGET get the same one.

    Raises:
        Refusal: There is no such program, or the TARGET, its parameters, or its configuration are wrong.
    """
    context = click.get_current_context()
    if not words:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    if context.meta[_IS_PROGRAM]:
        for name, option in _OF_TARGETS.items():
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise Refusal(f"{option} is for a TARGET, and what follows -- is a COMMAND; give one of the two")
        if shutil.which(words[0]) is None:
            raise Refusal(f"there is no program {words[0]!r}; give a file that can be run, or a name in PATH")
        with refusing():
            return words, _node_of(words)
    if len(words) > 1:
        raise Refusal(f"unexpected argument {words[1]!r}; give one TARGET, or put -- before a COMMAND")
    if ":" not in words[0] and "/" in words[0] and shutil.which(words[0]) is not None:
        raise Refusal(f"{words[0]} is a program and no TARGET; put -- before it")
    invocation = Invocation(targets=words, assignments=assignments, config=config, flags=flags)
    with refusing():
        plan = invocation.plan()
    assert plan.host is not None
    is_unpacked = invocation.given("snapshot") is not None
    named = {"host_root": str(plan.host.root)} if is_unpacked else flags
    without = ("env", "-u", SETTINGS["snapshot"].variable) if is_unpacked else ()  # the two contradict each other
    given = [*(part for each in assignments for part in ("--set", each))]
    given += [] if config is None else ["--config", str(config)]
    given += [part for name, text in named.items() if text is not None for part in (SETTINGS[name].flag, text)]
    return [*without, sys.executable, "-m", "kdp", "run", *words, *given], plan.host


def _node_of(words: Sequence[str]) -> Host:
    """Return the node that a COMMAND names as kdp's own do: by a flag, or by a variable that it inherits."""
    layer: dict[str, GivenValue] = {}
    for name in ("host_root", "snapshot"):
        flag = SETTINGS[name].flag
        texts = [text for word, text in pairwise(words) if word == flag]
        texts += [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
        if texts:
            layer[name] = GivenValue(flag, texts[-1])
    layers = [layer, from_environment(os.environ)]
    return host_of(resolve_some(layers, ("host_root", "snapshot"))) or Host()


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        reason = str(error).lower()
        raise Refusal(
            f"--previous: {command!r} is no command of a shell ({reason}); for example './driver --flag'"
        ) from None


def _check_mode(mode: str) -> None:
    context = click.get_current_context()
    for parameter, (option, why) in _NOT_FOR[mode].items():
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            raise Refusal(f"{option} is not for --mode {mode}: {why}")


def _ids(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Refusal(
            f"{option}: {text!r} must be numbers of checks with commas between; for example 1,17,33"
        ) from None
