"""``kdp doctor``: what is wrong on this node, and what mends it."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ...command import asking
from ...command.config import ConfigFile, parse_yaml, read, text_of
from ...command.failures import Failure
from ...command.found_sockets import found_sockets
from ...command.living import SOCKET_HELP
from ...command.options import backend_options, check_place, format_option, refusing, setting_options
from ...command.streams import document, end_now, shown
from ...daemon.setting import GivenValue
from ...daemon.settings import SETTINGS, Settings
from ...daemon.sources import from_environment, resolve_some
from ...errors import ConfigurationError, message_of
from ...hardware.host import Host
from ...storage import reading
from ..doctor.answers import Finding, Verdict, examine, is_under_way, worst
from ..doctor.catalogue import QUESTIONS
from ..doctor.cluster import ask as ask_cluster
from ..doctor.node import PATIENCE, Node, Once, Target
from .reaching import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..doctor.bundle import BundleSettings
    from ..doctor.outside.facts import NodeFacts

_NAMES = (
    "kubelet_root",
    "device_plugin_dir",
    "plugins_registry_dir",
    "pod_resources_dir",
    "host_root",
    "state_dir",
    "cdi_dir",
    "socket",
    "kubeconfig",
)
_HELP = {
    **SOCKET_HELP,
    "cdi_dir": "Where the runtime finds CDI files.",
    "kubeconfig": "How to reach the API server; default: with the pod's account, or by KUBECONFIG, or ~/.kube/config.",
}
_COLORS = {Verdict.OK: "green", Verdict.NOT_KNOWN: "cyan", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}
_CODES = {Verdict.OK: 0, Verdict.WARNING: 0, Verdict.FAILED: 1, Verdict.NOT_KNOWN: 4}
_MOST_BYTES = 16 << 20
_ACCOUNT = (Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),)


@click.command("doctor", short_help="Find out what is wrong on this node.")
@click.argument("target", required=False, metavar="[TARGET]")
@click.option("--all", "everything", is_flag=True, help="Show the questions that are answered 'ok' with their details.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write what an issue needs into this archive (.tar.gz), without secrets, and say first what is in it.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the answers of a bundle, and look at nothing here.",
)
@click.option(
    "--node-name",
    metavar="NODE",
    callback=node_name,
    help="Ask the API server about this node, and look at nothing here. It needs the extra 'kube'.",
)
@backend_options
@setting_options(*_NAMES, help=_HELP)
@format_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    target: str | None,
    everything: bool,
    bundle: Path | None,
    source: Path | None,
    node_name: str | None,
    assignments: tuple[str, ...],
    config: Path | None,
    format: str,
    **flags: str | None,
) -> None:
    """Find out what is wrong on this node: on the node itself, in the plugin's container, or on a laptop.

    Each question is answered 'ok', 'warning', 'failed', or 'not known', with what was seen. If something is wrong, the
    answer says why it matters and what mends it. Questions that do not apply are left out. A running plugin is asked on
    its unix socket. With a TARGET the questions about the backend's class are answered, too. With --config the
    directories of that file are looked at. The command changes nothing and ends within 5 seconds; --bundle may take 25.

    With --node-name it runs anywhere, and answers what the API server has. The account needs the verb 'get' on
    'nodes', 'pods/log', and 'pods/proxy', and 'list' on 'nodes', 'pods', 'events', 'leases', 'daemonsets',
    'resourceslices', 'deviceclasses', and 'resourceclaims'. What it may not read is 'not known'.

    \b
    Exit codes:
      0  nothing failed, and every answer is known; with --bundle: it is written
      1  something has failed; with --bundle: it cannot be written
      2  an option is wrong
      4  nothing failed, but an answer is not known
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()
    heads: list[str] = []
    with refusing():
        if source is not None:
            findings, heads = _bundled(source, bundle)
        elif node_name is not None:
            _refuse_local(target, bundle, assignments, config, flags)
            findings = _seen_from_outside(node_name, flags["kubeconfig"])
        else:
            file, bad_file = _file(config)
            node = _node(_settings(flags, file), _mode(file), _loading(target, assignments, config, flags), bad_file)
            if bundle is not None:
                _write(out, bundle, node, (flags, assignments, file))
                ctx.exit(0)
            findings = examine(QUESTIONS, node)
    verdict = worst(findings)
    if format == "json":
        click.echo(json.dumps(_as_json(findings, verdict), indent=2), file=out)
    else:
        is_terminal = out.isatty()
        for line in (*heads, *_lines(findings, everything=everything, is_terminal=is_terminal)):
            click.echo(line, file=out)
    code = _CODES[verdict]
    if is_under_way():
        end_now(code)
    ctx.exit(code)


def _bundled(source: Path, bundle: Path | None) -> tuple[Sequence[Finding], list[str]]:
    """Return the answers of a bundle, and the lines that say where it is from."""
    from ..doctor.bundle import read as read_bundle

    if bundle is not None:
        raise ConfigurationError("--bundle and --from: one writes a bundle and the other reads one; give one of them")
    found = read_bundle(source)
    about = found.about
    made = (
        f"the answers of {about.get('node')} at {about.get('made')}, by kdp {about.get('kdp')}, {about.get('system')}"
    )
    return found.findings, [shown(made), ""]


def _refuse_local(
    target: str | None,
    bundle: Path | None,
    assignments: tuple[str, ...],
    config: Path | None,
    flags: Mapping[str, str | None],
) -> None:
    """Refuse what is about this machine, where the API server is asked about another one."""
    given = {"TARGET": target, "--bundle": bundle, "--set": assignments, "--config": config}
    given |= {SETTINGS[name].flag: text for name, text in flags.items() if name != "kubeconfig"}
    for label, value in given.items():
        if value:
            raise ConfigurationError(
                f"--node-name and {label}: the API server is asked about the node, and {label} is about this machine; "
                "leave one of them out"
            )


def _seen_from_outside(name: str, kubeconfig: str | None) -> list[Finding]:
    import asyncio

    from ...cluster.client import KubeApi
    from ..doctor.outside.catalogue import QUESTIONS as FROM_OUTSIDE
    from ..doctor.outside.gathering import gather

    api = KubeApi(kubeconfig)

    def work() -> NodeFacts:
        return asyncio.run(gather(api, name))

    return examine(FROM_OUTSIDE, Once(work))


def _write(
    out: TextIO, file: Path, node: Node, given: tuple[Mapping[str, str | None], Sequence[str], ConfigFile]
) -> None:
    """Write the bundle, and say first what is in it.

    Raises:
        Failure: It cannot be written.
    """
    from ...hardware.snapshot import archive
    from ..doctor import bundle

    check_place("--bundle", file)
    made = bundle.make(node, examine(QUESTIONS, node), _bundle_settings(*given))
    click.echo("The bundle holds, without serial numbers, hardware addresses, tokens, and passwords:", file=out)
    for line in bundle.listed(made):
        click.echo(f"  {shown(line)}", file=out)
    click.echo("To read it: tar xzOf FILE", file=out)
    try:
        archive.write(made, file, first=bundle.CONTENTS, mode=0o600)  # it names pods
    except OSError as error:
        raise Failure(f"{file} cannot be written ({error.strerror}); name another file") from None
    click.echo(f"{file}: {file.stat().st_size / 1024:.1f} KiB", file=out)
    if is_under_way():
        end_now(0)


def _bundle_settings(flags: Mapping[str, str | None], assignments: Sequence[str], config: ConfigFile) -> BundleSettings:
    """Return what the command knows of the plugin's settings, from flags, variables, and the file."""
    from ..doctor.bundle import BundleSettings

    given = {each.label: str(each.value) for each in from_environment(os.environ).values()}
    given |= {each.label: str(each.value) for each in config.settings.values()}
    given |= {f"--{name.replace('_', '-')}": text for name, text in flags.items() if text is not None}
    parameters: dict[str, object] = {name: each.value for name, each in config.parameters.items()}
    parameters |= {
        name.removeprefix("KDP_SET_"): text for name, text in os.environ.items() if name.startswith("KDP_SET_")
    }
    parameters |= {name: text for name, _, text in (each.partition("=") for each in assignments)}
    kubeconfig = flags.get("kubeconfig") or os.environ.get("KDP_KUBECONFIG") or config.settings.get("kubeconfig")
    named = kubeconfig.value if isinstance(kubeconfig, GivenValue) else kubeconfig
    hidden = [_of_file(path) for path in (*_kubeconfigs(named), *_ACCOUNT)]
    hidden.append((config.text or "").encode(errors="replace"))
    return BundleSettings(settings=given, parameters=parameters, hidden=hidden, parameters_of=_parameters_of)


def _parameters_of(path: Path, text: str) -> dict[str, object]:
    try:
        return {name: each.value for name, each in read(path, text).parameters.items()}
    except ConfigurationError:  # secrets in its text are found without them
        return {}


def _kubeconfigs(named: object) -> list[Path]:
    """Return the files that say how to reach the API server, as `kdp.cluster` and kubectl look for them."""
    if named:
        return [Path(str(named))]
    paths = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    return [Path(path) for path in paths.split(os.pathsep) if path]


def _of_file(path: Path) -> bytes:
    try:
        return reading.read(path, limit=1 << 20)
    except OSError:
        return b""


def _file(path: Path | None) -> tuple[ConfigFile, str | None]:
    """Return what a configuration file says, and what is wrong with it: a bad one must not keep the answers back."""
    if path is None:
        return ConfigFile(), None
    text = None
    try:
        text = text_of(path)
        found = read(path, text)
        resolve_some([found.settings], SETTINGS)
    except ConfigurationError as error:
        return ConfigFile(text=text), message_of(error)  # a bundle leaves out its secrets
    return found, ""


def _settings(flags: Mapping[str, str | None], file: ConfigFile) -> Settings:
    strongest = {name: GivenValue(SETTINGS[name].flag, text) for name, text in flags.items() if text is not None}
    return resolve_some([strongest, from_environment(os.environ), file.settings], _NAMES)


def _mode(file: ConfigFile) -> str:
    """Return the mode that the environment or the file names; empty: neither does."""
    return next(
        (str(each["mode"].value) for each in (from_environment(os.environ), file.settings) if "mode" in each), ""
    )


def _node(settings: Settings, mode: str, target: Once[Target] | None, bad_file: str | None) -> Node:
    return Node(
        paths=settings.paths,
        state_dir=settings.state_dir,
        find_sockets=Once(functools.partial(_sockets, settings)),
        mode=mode,
        cdi_dir=settings.cdi_dir,
        find_host=Once(functools.partial(Host, settings.host_root)),
        parse_yaml=parse_yaml,
        ask=functools.partial(_ask, "/status.json"),
        ask_log=functools.partial(_ask, "/log"),
        cluster=Once(functools.partial(ask_cluster, settings.kubeconfig)),
        bad_file=bad_file,
        target=target,
    )


def _sockets(settings: Settings) -> tuple[Path, ...]:
    if isinstance(settings.socket, Path):
        return (settings.socket,)
    if settings.socket is None or settings.state_dir is None:
        return ()
    return tuple(found_sockets(settings.state_dir, settings.kubelet_root))


def _ask(route: str, path: Path) -> tuple[int, str]:
    return asking.ask(str(path), route, deadline=PATIENCE, most=_MOST_BYTES)


def _loading(
    target: str | None, assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None]
) -> Once[Target] | None:
    """Return what loads the target. A vendor's module may hang, so only the questions about it wait for that."""
    if target is not None:
        # The others are the plugin's settings: a class needs none of them.
        needed = {name: text for name, text in flags.items() if name == "host_root"}
        return Once(functools.partial(_load, target, assignments, config, needed))
    if assignments:
        raise ConfigurationError("--set is for a TARGET; name one, or leave it out")
    return None


def _load(target: str, assignments: tuple[str, ...], config: Path | None, flags: Mapping[str, str | None]) -> Target:
    from ...command.invocation import Invocation, needs_of

    plan = Invocation(targets=(target,), assignments=assignments, config=config, flags=flags, used=_NAMES).plan()
    (backend,) = plan.served()
    named = [*([backend.resource] if isinstance(backend.resource, str) else []), *backend.resources]
    return Target(label=type(backend).__name__, resources=tuple(named), needs=needs_of(backend))


def _as_json(findings: Sequence[Finding], verdict: Verdict) -> dict[str, Any]:
    questions = [
        {
            "id": each.question.id,
            "title": each.question.title,
            "why": each.question.why,
            "answer": each.answer.verdict.value,
            "seen": each.answer.seen,
            "remedy": each.answer.remedy or None,
        }
        for each in findings
    ]
    return {"answer": verdict.value, "questions": questions}


def _lines(findings: Sequence[Finding], *, everything: bool, is_terminal: bool) -> Iterator[str]:
    for finding in findings:
        answer = finding.answer
        head = f"{answer.verdict.value:9}"
        head = click.style(head, fg=_COLORS[answer.verdict]) if is_terminal else head
        yield f"{head}  {finding.question.title} {shown(answer.seen)}"
        if everything or answer.verdict in (Verdict.WARNING, Verdict.FAILED):
            yield f"{'':11}why: {finding.question.why}"
            if answer.remedy:
                yield f"{'':11}do:  {shown(answer.remedy)}"
    counts = {verdict: sum(each.answer.verdict is verdict for each in findings) for verdict in reversed(Verdict)}
    yield ""
    yield f"{len(findings)} questions: {', '.join(f'{count} {each.value}' for each, count in counts.items() if count)}"
