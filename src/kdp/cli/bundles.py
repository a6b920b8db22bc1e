"""The bundle of ``kdp doctor``: written on the node, read anywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ..daemon.sources import from_environment
from ..doctor import bundle
from ..hardware.snapshot import archive
from .failures import Failure, Refusal
from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from ..doctor.examination import Finding
    from ..doctor.node import Node
    from .config import ConfigFile


def check_place(file: Path) -> None:
    """Refuse a file that cannot be written, before anything is asked.

    Raises:
        Refusal: Its directory does not exist.
    """
    if not file.absolute().parent.is_dir():
        raise Refusal(f"--bundle {file}: its directory does not exist; make it, or name another file")


def settings_of(flags: Mapping[str, str | None], assignments: Sequence[str], config: ConfigFile) -> bundle.Settings:
    """Return what the command knows of the plugin's settings, from flags, variables, and the file."""
    given = {each.label: str(each.value) for each in from_environment(os.environ).values()}
    given |= {each.label: str(each.value) for each in config.settings.values()}
    given |= {f"--{name.replace('_', '-')}": text for name, text in flags.items() if text is not None}
    parameters: dict[str, object] = {name: each.value for name, each in config.parameters.items()}
    parameters |= {
        name.removeprefix("KDP_SET_"): text for name, text in os.environ.items() if name.startswith("KDP_SET_")
    }
    parameters |= {name: text for name, _, text in (each.partition("=") for each in assignments)}
    return bundle.Settings(settings=given, parameters=parameters)


def write(out: TextIO, file: Path, node: Node, findings: Sequence[Finding], settings: bundle.Settings) -> None:
    """Write the bundle, and say first what is in it.

    Raises:
        Failure: It cannot be written.
    """
    made = bundle.make(node, findings, settings)
    click.echo("The bundle holds, without serial numbers, hardware addresses, tokens, and passwords:", file=out)
    for line in bundle.listed(made):
        click.echo(f"  {shown(line)}", file=out)
    click.echo("Names of nodes, pods, and files stay in it. Read it before you give it away: tar xzOf FILE", file=out)
    try:
        archive.write(made, file)
    except OSError as error:
        raise Failure(f"{file} cannot be written ({error.strerror}); name another file") from None
    click.echo(f"{file}: {file.stat().st_size / 1024:.1f} KiB", file=out)
