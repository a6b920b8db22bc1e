"""``kdp devices [TARGET]``: what a running plugin lists; without one, what a discovery of a backend finds.

A discovery opens the hardware a second time, and sees no fault that ``watch`` reported. So a living plugin of the
target is asked first, as ``kdp status`` asks it. That loads neither the target nor gRPC: it must fit into the memory of
the plugin's container.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, final

import attrs
import click

from ...command.failures import Failure, Refusal
from ...command.living import SOCKET_HELP, ask_status, living_plugins, several
from ...command.options import backend_options, format_option, refusing, setting_options
from ...command.streams import document, shown
from ...operations.status_document import StatusDocument, to_json
from .status_text import counts_of, device_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...model.backend import DeviceBackend
    from ...operations.status_document import ListedDevice

_OTHER_DISCOVERY = ("host_root", "snapshot", "pod_resources_dir", "replicas", "replicas_for", "replica_resource")
"""Settings whose flags ask for something else than the plugin knows."""

_GROUP = "[kdp.backends]"


@click.command("devices", short_help="Show a running plugin's devices, or what a class discovers.")
@click.argument("target", metavar="[TARGET]", required=False)
@click.option(
    "--discover", "discovers", is_flag=True, help="Open the hardware, even if a running plugin has it open already."
)
@backend_options
@setting_options("socket", "state_dir", help=SOCKET_HELP)
@setting_options(
    "host_root", "snapshot", "kubelet_root", "pod_resources_dir", "replicas", "replicas_for", "replica_resource"
)
@format_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    target: str | None,
    discovers: bool,
    assignments: tuple[str, ...],
    config: Path | None,
    socket: str | None,
    state_dir: str | None,
    format: str,
    **flags: str | None,
) -> None:
    """Show the devices of a running plugin, or what a class discovers on this machine.

    If a plugin of TARGET runs on this node, it is asked: it knows faults that no discovery sees, and the pods that hold
    its devices. Without TARGET, the only running plugin is asked.

    If none runs, or an option asks for another discovery, TARGET is opened, discovers once, and is closed. Such options
    are --discover, --set, --config, --host-root, --snapshot, and --replicas. No kubelet is needed. Where a kubelet's
    pod-resources API can be asked, the pod that holds a device is shown, too.

    \b
    Exit codes:
      0  shown, be it no device
      1  the discovery failed, the running plugin serves nothing yet, or this
         user may not ask it
      2  the target, a parameter or the configuration is wrong
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()
    is_config_asked = ctx.get_parameter_source("config") is click.core.ParameterSource.COMMANDLINE
    is_other = any(flags[name] is not None for name in _OTHER_DISCOVERY) or bool(os.environ.get("KDP_SNAPSHOT"))
    living: tuple[_Living, ...] = ()
    if not (discovers or assignments or is_config_asked or is_other):
        found, denied = living_plugins(socket=socket, state_dir=state_dir, kubelet_root=flags["kubelet_root"])
        living = tuple(map(_Living.of, found))
        if target is None and len(living) > 1:
            raise Refusal(several(found))
        name = None if target is None else _class_of(target)
        meant = [each for each in living if target is None or name in each.classes]
        if meant:
            _show(out, meant, format)
            return
        if denied:
            raise Failure(
                f"a plugin may run that this user may not ask: {', '.join(map(str, denied))}: Permission denied; run "
                "this as root, or as the plugin's user; kdp devices TARGET --discover opens the hardware itself"
            )
    if target is None:
        why = "which a discovery needs" if discovers else "and no plugin answers on this node"
        raise Refusal(f"TARGET is missing, {why}; expected kdp devices [OPTIONS] TARGET")
    from ...command.invocation import Invocation  # late: a command in the plugin's container does not need it

    with refusing():
        plan = Invocation(targets=(target,), assignments=assignments, config=config, flags=flags).plan()
        (backend,) = plan.served()
    if meant := [each for each in living if each.serves(backend)]:
        _show(out, meant, format)
        return
    from .looking import show

    show(out, backend, plan, format)


@final
@attrs.frozen
class _Living:
    """A plugin that answers at a socket.

    Attributes:
        socket: The socket.
        found: Its status document.
    """

    socket: Path
    found: StatusDocument

    @classmethod
    def of(cls, socket: Path) -> _Living:
        """Ask a plugin.

        Raises:
            Failure: It answers with something else.
        """
        try:
            return cls(socket, ask_status(socket))
        except Failure as error:
            remedy = "kdp devices TARGET --discover opens the hardware itself"
            raise Failure(f"{error.message.partition('; ')[0]}; {remedy}") from None

    @property
    def classes(self) -> frozenset[str]:
        """The names of the classes that it serves."""
        return frozenset(each.class_name for each in self.found.backends)

    @property
    def resources(self) -> Mapping[str, Sequence[ListedDevice]]:
        """The devices of each resource or driver."""
        return {each.name: each.listed for each in self.found.resources}

    @property
    def problems(self) -> Iterator[str]:
        """Why it serves nothing."""
        yield from filter(None, [self.found.reason, *(self.found.absent or ()), *self.found.backend_problems])

    def serves(self, backend: DeviceBackend) -> bool:
        """Return whether it serves the resource of a class that is loaded and not opened."""
        return type(backend).__name__ in self.classes or backend.resource in self.resources


def _class_of(target: str) -> str | None:
    """Return the name of a TARGET's class without loading it; None: it is not known."""
    if ":" in target:
        return target.rpartition(":")[2].rpartition(".")[2]
    return next(_entry_points(target), None)


def _entry_points(target: str) -> Iterator[str]:
    """Return the class that an installed package names so. `importlib.metadata` takes 7 MiB, so its files are read."""
    for place in dict.fromkeys(sys.path):
        try:
            names = [name for name in os.listdir(place or ".") if name.endswith(".dist-info")]
        except OSError:  # a ZIP file, or a directory that is missing
            continue
        for name in names:
            try:
                with open(os.path.join(place, name, "entry_points.txt"), encoding="utf-8") as file:
                    lines = file.read().splitlines()
            except (OSError, ValueError):
                continue
            group = ""
            for line in lines:
                key, _, value = line.partition("=")
                if line.startswith("["):
                    group = line.strip()
                elif group == _GROUP and key.strip() == target:
                    yield value.partition("[")[0].strip().rpartition(":")[2].rpartition(".")[2]


def _show(out: TextIO, living: Sequence[_Living], format: str) -> None:
    """Print what the plugins list."""
    if format == "json":
        asked = [{"socket": str(each.socket), "pid": each.found.pid, "ready": each.found.is_ready} for each in living]
        resources = {name: to_json(listed) for each in living for name, listed in each.resources.items()}
        click.echo(json.dumps({"plugins": asked, "resources": resources}, indent=2), file=out)
    else:
        for each in living:
            click.echo("\n".join(_lines(each, is_terminal=out.isatty())), file=out)
    for each in living:
        if not each.resources:
            problems = "; ".join(each.problems) or "it is starting"
            raise Failure(f"the running plugin at {each.socket} lists no resource: {problems}")


def _lines(living: _Living, *, is_terminal: bool) -> Iterator[str]:
    yield f"the running plugin was asked, at {living.socket}; --discover opens the hardware instead"
    for resource in living.found.resources:
        yield ""
        yield shown(f"{resource.name}: {counts_of(resource)}")
        if resource.listed:
            yield from device_lines(resource.listed, is_terminal=is_terminal)
