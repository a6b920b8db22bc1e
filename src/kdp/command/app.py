"""The group of commands: knows their names, loads one only when it is called or described."""

from __future__ import annotations

import importlib
import platform
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click
from typing_extensions import override

from .._version import __version__
from ..model.spelling import hint
from . import failures

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_A_NODE = __name__.rpartition(".")[0]
_OF_PEOPLE = "kdp.admin.commands"
_COMMANDS = {
    "run": _OF_A_NODE,
    "backends": _OF_PEOPLE,
    "devices": _OF_PEOPLE,
    "explain": _OF_PEOPLE,
    "snapshot": _OF_PEOPLE,
    "manifests": _OF_PEOPLE,
    "probe": _OF_A_NODE,
    "status": _OF_PEOPLE,
    "doctor": _OF_PEOPLE,
    "nodes": _OF_PEOPLE,
    "node": _OF_PEOPLE,
    "unpublish": _OF_PEOPLE,
    "uninstall": _OF_PEOPLE,
}
"""The room of each command's module, in the order of the help."""
_ENTRY_POINTS = "kdp.commands"
_OF_THE_TESTKIT = ("conformance", "record", "replay", "simulate")


class _Commands(failures.Group):
    """kdp's own commands first, then those that other distributions bring by an entry point."""

    @override
    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line, and end the process; what goes wrong is told in kdp's way and not in click's."""
        run: Callable[..., object] = super().main
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.ClickException as error:
            failures.tell(error)
            code = error.exit_code
        except click.Abort:
            click.echo("kdp: aborted", err=True)
            code = 1
        sys.exit(code if isinstance(code, int) else 0)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        from importlib.metadata import entry_points

        return [*_COMMANDS, *sorted({point.name for point in entry_points(group=_ENTRY_POINTS)} - {*_COMMANDS})]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            own: click.Command = importlib.import_module(f"{_COMMANDS[cmd_name]}.{cmd_name}").command
            return own
        from importlib.metadata import entry_points

        for point in entry_points(group=_ENTRY_POINTS, name=cmd_name):
            brought: click.Command = point.load()
            return brought
        if cmd_name in _OF_THE_TESTKIT:
            raise click.UsageError(
                f"the command {cmd_name!r} comes with the distribution kdp-testkit; pip install 'kdp-sdk[testing]'", ctx
            )
        if not ctx.resilient_parsing and (near := hint(cmd_name, self.list_commands(ctx))):
            raise click.UsageError(f"there is no command {cmd_name!r}; {near}", ctx)
        return None


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(
    __version__, message=f"kdp %(version)s (Python {platform.python_version()})", help="Show the version."
)
def kdp() -> None:
    """Write a Kubernetes device plugin in Python: subclass DeviceBackend, kdp does the rest.

    \b
    A TARGET says which class to use:
      package.module:Class   a module that Python finds, also in this directory
      path/file.py:Class     a file
      NAME                   an installed backend; 'kdp backends' lists them

    \b
    To begin with:
      kdp devices widgets.py:Widgets    show its devices
      kdp simulate widgets.py:Widgets   try it without a cluster
      kdp explain widgets.py:Widgets --policy packed --size 2
                                        show the choice of a policy
      kdp manifests widgets.py:Widgets --image registry.example.com/widgets:1
                                        write the objects that deploy it
      kdp run widgets.py:Widgets        serve the kubelet of this node

    An option whose help names a variable KDP_... can also be given by that variable, and most options of 'kdp run' also
    in the file that --config names. Flags win over variables, and variables over the file.

    A command writes to stdout, or into the file that its option --output names. Its option --format chooses the form.
    The exit code is 0 if all went well, and 2 if the command line or the configuration is wrong. It is 1 if something
    else failed, or the output could not be written.
    """  # noqa: D301 - click's mark for a block that keeps its lines
