"""How a command says that something went wrong: ``kdp COMMAND: what happened; what to do``, one line on stderr."""

from __future__ import annotations

from typing import Any

import click
from typing_extensions import override

from .streams import shown


class Failure(click.ClickException):
    """The answer is no, or something could not be done: one sentence, exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.ctx = click.get_current_context(silent=True)


class Refusal(Failure):
    """Something that was given is wrong: one sentence, exit code 2.

    Args:
        message: The sentence.
        as_json: Whether it is written as a line of a JSON log.
    """

    exit_code = 2

    def __init__(self, message: str, *, as_json: bool = False) -> None:
        super().__init__(message)
        self._as_json = as_json

    @override
    def show(self, file: Any = None) -> None:
        if not self._as_json:
            click.echo(line_of(self), file=file, err=file is None)
            return
        from ..daemon.logs import refusal

        click.echo(refusal(self.message, as_json=True), file=file, err=file is None, nl=False)


class Group(click.Group):
    """A group of commands. An error names the command that it is about, which click leaves out of some."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = None if name is None else self.get_command(ctx, name)
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, info_name=name, parent=ctx)
            raise


def tell(error: click.ClickException) -> None:
    """Write to stderr what a command ends with. An error of click is written as one of ours."""
    if isinstance(error, (Refusal, click.exceptions.NoArgsIsHelpError)):
        error.show()
    else:
        click.echo(line_of(error), err=True)


def warn(text: str) -> None:
    """Write to stderr what a person should know of a command that goes on."""
    click.echo(shown(f"{click.get_current_context().command_path}: warning: {text}"), err=True)


def line_of(error: click.ClickException) -> str:
    """Return an error with the name of its command in front."""
    ctx: click.Context | None = getattr(error, "ctx", None)
    return shown(f"{'kdp' if ctx is None else ctx.command_path}: {sentence_of(error)}")


def sentence_of(error: click.ClickException) -> str:
    """Return what happened and what to do; click names no cure."""
    if not isinstance(error, click.UsageError):
        return error.message
    path = "kdp" if error.ctx is None else error.ctx.command_path
    look = f"see '{path} --help'"
    match error:
        case click.NoSuchOption():
            near = " or ".join(error.possibilities or ())
            return f"there is no option {error.option_name}; {f'did you mean {near}?' if near else look}"
        case click.MissingParameter():
            usage = "" if error.ctx is None else " ".join(error.ctx.command.collect_usage_pieces(error.ctx))
            return f"{_label(error)} is missing; expected {path} {usage}"
        case click.BadParameter():
            return _cured(f"{_label(error)}: {error.message}", look)
        case _:
            return _cured(error.message[:1].lower() + error.message[1:], look)


def _label(error: click.BadParameter) -> str:
    """Return what a parameter is called where it is given: ``--format``, or ``TARGET``."""
    parameter = error.param
    if parameter is None:
        return str(error.param_hint or "a value")
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.make_metavar(error.ctx or click.Context(click.Command(None))).strip("[].")


def _cured(text: str, cure: str) -> str:
    """Return a text with what to do, if it does not say that by itself."""
    text = text.rstrip(".")
    return text if ";" in text or " is not one of " in text else f"{text}; {cure}"
