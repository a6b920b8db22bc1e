"""The options that commands share, made from the table of settings, and their headings in ``--help``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from ..daemon.settings import SETTINGS
from ..errors import ConfigurationError, InvalidValueError, message_of
from .failures import Refusal

_Function = TypeVar("_Function", bound=Callable[..., Any])

CONFIGURATION: Final = {"Class and configuration": ("assignments", "config", "is_strict", "config_label")}

SETTING_GROUPS: Final = {
    "What is served, and how": ("mode", "registration", "node_name", "kubeconfig"),
    "Discovery and health": ("poll_interval", "health_policy", "when_no_devices", "host_root", "snapshot"),
    "Choice and sharing of devices": (
        "policy",
        "release_policy",
        "replicas",
        "replicas_for",
        "replica_placement",
        "replica_limit",
        "replica_resource",
    ),
    "CDI": ("cdi", "cdi_dir", "cdi_names"),
    "DRA drivers": (
        "driver_name",
        "pool",
        "pool_nodes",
        "pod_uid",
        "health_taint",
        "replaces",
        "device_status",
        "device_metadata",
    ),
    "Probes, metrics, and status": ("http", "http_details", "metrics", "socket"),
    "Events, evictions, and labels": (
        "events",
        "on_unhealthy",
        "evict_after",
        "evict_limit",
        "evict_dry_run",
        "startup_taint",
        "labels",
        "labels_dir",
    ),
    "Directories": (
        "kubelet_root",
        "device_plugin_dir",
        "plugins_registry_dir",
        "pod_resources_dir",
        "pods_api_dir",
        "state_dir",
    ),
    "Log": ("log_format", "log_level"),
}
"""The settings of a process by heading."""


class GroupedCommand(click.Command):
    """A command whose options stand under headings.

    Args:
        groups: The names of parameters by heading. What is in no group stands under "Options".
    """

    def __init__(self, *args: Any, groups: Mapping[str, tuple[str, ...]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups = groups

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {str(each.name): each.get_help_record(ctx) for each in options}
        rows = {name: record for name, record in records.items() if record is not None}
        for heading, names in self._groups.items():
            _write_group(formatter, heading, [rows.pop(name) for name in names if name in rows])
        _write_group(formatter, "Options", [*rows.values()])


def _write_group(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


class Word(click.Choice[str]):
    """One of some words, shown in ``--help`` as settings show theirs."""

    @override
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join(self.choices)


class Seconds(click.types.FloatParamType):
    """A finite number of seconds above 0.

    Args:
        most: The largest number.
    """

    def __init__(self, *, most: float = math.inf) -> None:
        self._most = most

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (0 < seconds <= self._most and math.isfinite(seconds)):
            limit = f" and at most {self._most:g}" if math.isfinite(self._most) else ""
            self.fail(f"{value!r} must be a number of seconds above 0{limit}; for example 2.5", param, ctx)
        return seconds


@contextmanager
def refusing(*, as_json: Callable[[], bool] = lambda: False) -> Generator[None]:
    """Turn what the model and the settings refuse into a `Refusal`.

    Args:
        as_json: Whether it is told as a line of a JSON log; asked when there is a refusal.
    """
    try:
        yield
    except (ConfigurationError, InvalidValueError) as error:
        raise Refusal(message_of(error), as_json=as_json()) from None


def check_place(flag: str, file: Path) -> None:
    """Refuse a file that an option names, if its directory cannot be used, before anything is done for it.

    Raises:
        Refusal: Its directory does not exist, is no directory, or is closed to this user.
    """
    try:
        os.stat(f"{file.absolute().parent}/")  # with the slash, a file is refused
    except FileNotFoundError:
        raise Refusal(f"{flag} {file}: its directory does not exist; make it, or name another file") from None
    except OSError as error:
        raise Refusal(f"{flag} {file}: its directory cannot be used ({error.strerror}); name another file") from None


def setting_options(*names: str, help: Mapping[str, str] | None = None) -> Callable[[_Function], _Function]:
    """Add the flags of these settings to a command; each arrives as text or None.

    Args:
        *names: The settings' names.
        help: What a flag means to this command, if that is something else than it means to a plugin.
    """
    own = help or {}

    def add(function: _Function) -> _Function:
        for name in reversed(names):
            setting = SETTINGS[name]
            default = "" if setting.shown_default is None else f"  [default: {setting.shown_default}]"
            text = f"{own.get(name, setting.help)}{default}  [{setting.variable}]"
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


def format_option(
    first: str = "text", *others: str, help: str = "Text for people, or JSON for programs."
) -> Callable[[_Function], _Function]:
    """Add ``--format`` and its short form ``-o`` with these formats; the first is the default."""
    return click.option(
        "-o",
        "--format",
        "format",
        type=Word([first, *(others or ("json",))]),
        default=first,
        show_default=True,
        envvar="KDP_FORMAT",
        help=f"{help}  [KDP_FORMAT]",
    )
