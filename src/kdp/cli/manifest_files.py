"""The files that ``kdp manifests`` writes: what stands at their top, and where they may be put."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Final, TextIO

import click

from ..errors import ConfigurationError
from ..manifests.deployment import on_one_line
from ..manifests.kubernetes import security_level

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..manifests.deployment import Deployment

_MADE: Final = "Written by: kdp manifests"


def check_directory(directory: Path, first_file: str) -> None:
    """Refuse a directory with files that this command has not written; what it has written may be renewed.

    Raises:
        ConfigurationError: It has some, or it cannot be read.
    """
    try:
        if not os.listdir(directory):
            return
    except (FileNotFoundError, NotADirectoryError):  # it is made later, or refused then
        return
    except OSError as error:
        raise ConfigurationError(
            f"--output {directory}: cannot be read ({error.strerror}); name another directory"
        ) from None
    try:
        is_ours = (directory / first_file).read_text(errors="replace").startswith(f"# {_MADE}")
    except OSError:
        is_ours = False
    if not is_ours:
        raise ConfigurationError(
            f"--output {directory}: the directory has files that kdp manifests did not write; name a new directory"
        )


def head(arguments: list[str], deployment: Deployment, *, is_pod: bool) -> str:
    """Return the comment at the top: how this was made, and what the process is given, for people who review it."""
    reasons = deployment.reasons()
    width = max(len(what) for what, _ in reasons)
    lines = [
        f"{_MADE} {' '.join(map(_shell_word, _without_output(arguments)))}",
        "The process is given:",
        *(f"  {what:{width}}  {why}" for what, why in reasons),
    ]
    if is_pod:
        level, why = security_level(deployment)
        lines.append(f"The namespace must allow the Pod Security level {level} ({why}).")
    return "".join(f"# {line}\n" for line in lines)


def _shell_word(argument: str) -> str:
    if argument.isprintable():
        return shlex.quote(argument)
    escaped = argument.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{on_one_line(escaped)}'"


def _without_output(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-o", "--output"):
            next(rest, None)
        elif not argument.startswith(("--output=", "-o")):
            kept.append(argument)
    return kept


def write(written: Mapping[str, str], output: Path | None, out: TextIO) -> None:
    """Write files into a directory, or the only one into a file or a stream.

    Raises:
        ConfigurationError: It cannot be written.
    """
    if output is None:
        click.echo(written[""], nl=False, file=out)
        return
    try:
        for name, text in written.items():
            if name:  # in a directory
                (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_text(text)
    except OSError as error:
        raise ConfigurationError(
            f"--output {output}: cannot be written ({error.strerror}); name another file"
        ) from error
