"""The files that ``kdp manifests`` writes: as YAML, what stands at their top, and where they may be put."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from typing_extensions import override

from ...errors import ConfigurationError
from ..manifests.deployment import on_one_line
from ..manifests.kubernetes import security_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import yaml

    from ..manifests.deployment import Deployment

_MADE: Final = "Written by: kdp manifests"

_PLAIN: Final = re.compile(
    r"(?!(y|yes|n|no|on|off|true|false|null)\Z)(--)?[a-z/].*|[0-9]+(m|Mi|%)", re.ASCII | re.IGNORECASE
)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as one text that every reader understands alike.

    PyYAML quotes what PyYAML itself would take for something else. kubectl reads a dialect of its own, between YAML 1.1
    and 1.2: to it ``y`` is true, ``1e3`` and ``0o17`` are numbers, and ``2001-1-1`` is a date. So only what looks like
    a word, a path, a flag or a quantity is left plain.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        @override
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)  # pyright: ignore[reportUnknownMemberType]

    Dumper.add_representer(str, represent)
    return "---\n".join(yaml.dump(each, Dumper=Dumper, sort_keys=False, width=1000) for each in documents)


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
