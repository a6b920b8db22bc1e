"""The options that commands share, made from the table of settings, and how a refusal looks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from typing_extensions import override

from ..daemon.settings import SETTINGS
from ..errors import ConfigurationError, InvalidValueError, message_of
from .streams import shown

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Refusal(click.ClickException):
    """Something that was given is wrong: one sentence, exit code 2."""

    exit_code = 2

    def __init__(self, message: str, *, as_json: bool = False) -> None:
        super().__init__(message)
        self._as_json = as_json

    @override
    def show(self, file: Any = None) -> None:
        if not self._as_json:
            super().show(file)
            return
        from ..daemon.logs import refusal

        click.echo(refusal(self.message, as_json=True), file=file, err=file is None, nl=False)

    @override
    def format_message(self) -> str:
        return shown(self.message)


class Seconds(click.FloatRange):
    """A finite number of seconds above 0; `click.FloatRange` takes NaN for a number in every range."""

    def __init__(self, *, most: float | None = None) -> None:
        super().__init__(min=0, min_open=True, max=most)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{seconds} is no number of seconds.", param, ctx)
        return seconds


class refusing:
    """Turn what the model and the settings refuse into a `Refusal`.

    Args:
        as_json: Whether it is told as a line of a JSON log; asked when there is a refusal.
    """

    def __init__(self, *, as_json: Callable[[], bool] = lambda: False) -> None:
        self._as_json = as_json

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Translate."""
        if isinstance(error, (ConfigurationError, InvalidValueError)):
            raise Refusal(message_of(error), as_json=self._as_json()) from None


def setting_options(*names: str) -> Callable[[_Function], _Function]:
    """Add the flags of these settings to a command; each arrives as text or None."""

    def add(function: _Function) -> _Function:
        for name in reversed(names):
            setting = SETTINGS[name]
            default = "" if setting.shown_default is None else f"  [default: {setting.shown_default}]"
            text = f"{setting.help}{default}  [{setting.variable}]"
            function = click.option(setting.flag, name, metavar=setting.metavar, help=text)(function)
        return function

    return add


def backend_options(function: _Function) -> _Function:
    """Add ``--set`` and ``--config``."""
    function = click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="KDP_CONFIG",
        help="Read options from this YAML, JSON or TOML file: their names without dashes in front, and 'set', a "
        "mapping. A pipe, such as <(sops -d x.yaml), is read once.  [KDP_CONFIG]",
    )(function)
    return click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="[TARGET.]NAME=VALUE",
        help="Set a parameter of the class's constructor, converted by its annotation; may be repeated. With TARGET "
        "only that one's, where several have such a parameter.  [KDP_SET_<NAME>]",
    )(function)


def output_option(first: str, *others: str) -> Callable[[_Function], _Function]:
    """Add ``--output`` with these formats; the first is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([first, *others]),
        default=first,
        show_default=True,
        envvar="KDP_OUTPUT",
        help="For people, or for programs.  [KDP_OUTPUT]",
    )
