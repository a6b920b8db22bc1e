"""``kdp run TARGET...``: serve the node's kubelet."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click
from typing_extensions import override

from ..daemon import logs
from ..daemon.process import prepare_process, run_plan
from ..daemon.setting import Need
from ..daemon.settings import SETTINGS
from ..errors import ConfigurationError
from .config import read as read_config
from .config import seen_in
from .failures import Refusal, sentence_of
from .invocation import Invocation
from .kept_config import ConfigKeeper
from .options import CONFIGURATION, SETTING_GROUPS, GroupedCommand, backend_options, refusing, setting_options

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE: Final = Need(lambda config: config is not None, "there is no configuration file", "name one with --config FILE")


@final
class _Run(GroupedCommand):
    """The command. If its log is JSON, what click refuses is a line of that log, too."""

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        given = [*args]  # click takes them out of the list
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            file = _value("--config", given) or os.environ.get("KDP_CONFIG")
            if not _wants_json(Path(file) if file else None, _value(SETTINGS["log_format"].flag, given)):
                raise
            raise Refusal(sentence_of(error), as_json=True) from None


@click.command("run", cls=_Run, groups=CONFIGURATION | SETTING_GROUPS, short_help="Serve the kubelet of this node.")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@backend_options
@click.option(
    "--strict-config",
    "is_strict",
    is_flag=True,
    envvar="KDP_STRICT_CONFIG",
    help="Refuse a bad configuration file at the start, instead of using the last good one.  [KDP_STRICT_CONFIG]",
)
@click.option(
    "--config-label",
    metavar="LABEL",
    envvar="KDP_CONFIG_LABEL",
    help="Let a label of the node name the configuration: --config is a directory then, and the label's value names a "
    "file in it. It needs the extra 'kube', --node-name, and the right to get nodes.  [KDP_CONFIG_LABEL]",
)
@setting_options(*SETTINGS)
def command(
    targets: tuple[str, ...],
    assignments: tuple[str, ...],
    config: Path | None,
    is_strict: bool,
    config_label: str | None,
    **flags: str | None,
) -> None:
    """Serve the kubelet of this node with the devices of one or several classes, until asked to stop.

    SIGTERM and SIGINT stop in order, SIGHUP reads the configuration file again and discovers again over the living
    streams, SIGQUIT writes all stacks to stderr.

    The last good configuration file is kept in the state directory. A restart with a bad file uses it, with a warning.

    With --config-label, a node without the label has the file 'default'. Another value of the label switches the
    configuration as SIGHUP does. A value that names no file keeps the one in force, with a warning.

    \b
    Exit codes:
      0  asked to stop
      1  internal failure: a bug of kdp
      2  the configuration, a target, a parameter, or a limit of the process is
         wrong
      3  the plugin directory is unlinked, and only a new process with a new mount
         helps
    """  # noqa: D301 - click's mark for a block that keeps its lines
    sys.stdout = sys.__stdout__  # it is the vendor's: nothing of ours is written there
    with refusing(as_json=functools.partial(_wants_json, config, flags["log_format"])):
        if is_strict:
            _FILE.check(config, "--strict-config")
        signals = prepare_process()
        logs.hold_back()
        invocation = Invocation(targets=targets, assignments=assignments, config=config, flags=flags, serves=True)
        keeper = ConfigKeeper(invocation, is_strict=is_strict)
        if not config_label:
            plan = keeper.first()
            read_again, rejection, follow = keeper.again, keeper.rejection, None
        else:
            from .chosen_config import LabelledConfig  # its library is large

            labelled = LabelledConfig(invocation, keeper, config_label)
            plan = labelled.first()
            read_again, rejection, follow = labelled.again, labelled.rejection, labelled.follow
    logs.take_over()
    raise SystemExit(
        run_plan(
            plan,
            signals=signals,
            read_again=read_again,
            rejection=rejection,
            last_good=keeper.last_good,
            follow=follow,
            proved=keeper.keep,
        )
    )


def _wants_json(config: Path | None, flag: str | None) -> bool:
    """Return whether the log is to be JSON, as far as that can be found out when something is wrong."""
    text: object = flag or os.environ.get(SETTINGS["log_format"].variable)
    if not text:
        try:
            given = read_config(config).settings.get("log_format")
        except ConfigurationError:
            text = None if config is None else next(iter(seen_in(config, "log_format")), None)
        else:
            text = None if given is None else given.value
    return isinstance(text, str) and text.strip().lower() == "json"


def _value(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the value of a flag in a command line that cannot be understood; None: it is not there."""
    found = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            found = value if equals else next(iter(arguments[position + 1 :]), None)
    return found
