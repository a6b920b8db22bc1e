"""The bundle of ``kdp doctor``: written on the node, read anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..daemon.setting import GivenValue
from ..daemon.sources import from_environment
from ..doctor import bundle
from ..errors import ConfigurationError
from ..hardware.snapshot import archive
from ..storage import reading
from .config import read
from .failures import Failure
from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from ..doctor.answers import Finding
    from ..doctor.node import Node
    from .config import ConfigFile


def settings_of(
    flags: Mapping[str, str | None], assignments: Sequence[str], config: ConfigFile
) -> bundle.BundleSettings:
    """Return what the command knows of the plugin's settings, from flags, variables, and the file."""
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
    return bundle.BundleSettings(settings=given, parameters=parameters, hidden=hidden, parameters_of=_parameters_of)


def _parameters_of(path: Path, text: str) -> dict[str, object]:
    try:
        return {name: each.value for name, each in read(path, text).parameters.items()}
    except ConfigurationError:  # secrets in its text are found without them
        return {}


_ACCOUNT: Final = (Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),)


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


def write(out: TextIO, file: Path, node: Node, findings: Sequence[Finding], settings: bundle.BundleSettings) -> None:
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
        archive.write(made, file, first=bundle.CONTENTS, mode=0o600)  # it names pods
    except OSError as error:
        raise Failure(f"{file} cannot be written ({error.strerror}); name another file") from None
    click.echo(f"{file}: {file.stat().st_size / 1024:.1f} KiB", file=out)
