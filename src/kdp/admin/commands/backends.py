"""``kdp backends [NAME]``: which backends are installed, from which distribution, and what each can be told.

It loads each class and makes no object of it, so that no hardware is asked.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from typing import TYPE_CHECKING, Any, TextIO, final

import attrs
import click

from ...command.convert import describe
from ...command.failures import Refusal
from ...command.options import format_option, refusing
from ...command.streams import console, document, shown, table
from ...command.targets import documented, installed, load, settable
from ...errors import ConfigurationError, message_of
from ...model.backend import DeviceBackend

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint


@click.command("backends", short_help="List the installed backends.")
@click.argument("name", metavar="[NAME]", required=False)
@format_option()
def command(name: str | None, format: str) -> None:
    """List the installed backends: those that an entry point of the group kdp.backends names.

    With NAME, show one backend and the parameters that '--set' takes. JSON always has the parameters.

    \b
    Exit codes:
      0  listed, be it nothing
      1  a backend in the list cannot be loaded; its line has the reason
      2  there is no backend NAME, or it cannot be loaded
    """  # noqa: D301 - click's mark for a block that keeps its lines
    out = document()
    points = installed()
    if name is not None:
        with refusing():
            load(name)  # refuses a name that is not installed, and a broken one
        if name not in points:
            raise Refusal(f"{name!r} is no installed backend; kdp backends lists them, and 'kdp devices' takes a file")
        points = {name: points[name]}
    found = [_look(point) for point in points.values()]
    if format == "json":
        click.echo(json.dumps({"backends": [each.as_json() for each in found]}, indent=2), file=out)
    elif name is None:
        _print_list(out, found)
    else:
        _print_one(out, *found)
    if any(each.cls is None for each in found):
        raise click.exceptions.Exit(1)


@final
@attrs.frozen(kw_only=True)
class _Installed:
    """An installed backend: its entry point, and the class, or why that cannot be loaded."""

    name: str
    path: str
    distribution: str
    version: str
    cls: type[DeviceBackend] | None
    error: str | None

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return _plain_text((getattr(self.cls, "__doc__", None) or "").strip().partition("\n")[0])

    @property
    def parameters(self) -> list[_Parameter]:
        """What its constructor takes, but for the node's files."""
        if self.cls is None:
            return []
        said = documented(self.cls)
        return [_Parameter.of(each, said.get(each.name, "")) for each in settable(self.cls).values()]

    def as_json(self) -> dict[str, object]:
        """Return it as ``--format json`` shows it."""
        return {
            "name": self.name,
            "class": self.path,
            "distribution": self.distribution,
            "version": self.version,
            "summary": self.summary,
            "parameters": [attrs.asdict(each) for each in self.parameters],
            "error": self.error,
        }


@final
@attrs.frozen(kw_only=True)
class _Parameter:
    """One parameter of a backend's constructor.

    Attributes:
        name: Its name.
        description: What the ``Args:`` of the docstring say of it.
        type: In words.
        required: Whether it has no default.
        default: As JSON has it, or as text.
    """

    name: str
    description: str
    type: str
    required: bool
    default: bool | float | str | list[object] | None

    @classmethod
    def of(cls, parameter: inspect.Parameter, description: str) -> _Parameter:
        """Return a parameter of a signature."""
        is_open = parameter.kind is parameter.VAR_KEYWORD
        return cls(
            name=f"**{parameter.name}" if is_open else parameter.name,
            description=_plain_text(description),
            type=_words(parameter.annotation),
            required=parameter.default is parameter.empty and not is_open,
            default=None if parameter.default is parameter.empty else _plain(parameter.default),
        )

    @property
    def shown(self) -> str:
        """The default as ``--set`` would take it."""
        if self.required:
            return "(required)"
        if isinstance(self.default, list):
            return ",".join(map(str, self.default))
        is_word = self.default is None or isinstance(self.default, bool)
        return str(self.default).lower() if is_word else str(self.default)


def _plain_text(docstring: str) -> str:
    """Return a docstring's text without the marks of reStructuredText."""
    return re.sub(r"(?::[a-z:]+:)?(`{1,2})~?(.+?)\1", r"\2", docstring)


def _words(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "text (str)"
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return re.sub(r"; for example \S+", "", describe(annotation))


def _plain(value: object) -> bool | float | str | list[object] | None:
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in typing.cast("Sequence[object]", value)]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _look(point: EntryPoint) -> _Installed:
    cls: type[DeviceBackend] | None = None
    error: str | None = None
    try:
        cls = load(point.name)
    except ConfigurationError as refused:
        error = " ".join(message_of(refused).split())
    distribution = point.dist
    return _Installed(
        name=point.name,
        path=point.value,
        distribution="" if distribution is None else distribution.name,
        version="" if distribution is None else distribution.version,
        cls=cls,
        error=error,
    )


def _print_list(out: TextIO, found: Sequence[_Installed]) -> None:
    if not found:
        click.echo(
            "no backends are installed; kdp's own come with pip install 'kdp-sdk[nvidia-gpu,fpga,rdma]'", file=out
        )
    loaded = [each for each in found if each.cls is not None]
    if loaded:
        rows = [(each.name, each.path, f"{each.distribution} {each.version}", each.summary) for each in loaded]
        console(out).print(table(("NAME", "CLASS", "DISTRIBUTION", "WHAT IT IS"), rows))
    for each in found:
        if each.error is not None:
            origin = f"{each.distribution} {each.version}".strip() or "unknown distribution"
            click.echo(f"{each.name} ({origin}) cannot be loaded: {shown(each.error)}", file=out)


def _print_one(out: TextIO, backend: _Installed) -> None:
    screen = console(out)
    screen.print(f"{backend.name}: {backend.path} of {backend.distribution} {backend.version}".rstrip())
    screen.print(*[line for line in (backend.summary,) if line])
    rows = [(each.name, each.type, each.shown, each.description) for each in backend.parameters]
    if rows:
        columns = ("PARAMETER", "TYPE", "DEFAULT", "DESCRIPTION")
        shown_columns = columns if any(row[3] for row in rows) else columns[:3]
        screen.print(table(shown_columns, [row[: len(shown_columns)] for row in rows]))
