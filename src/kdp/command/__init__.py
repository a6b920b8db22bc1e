"""The command ``kdp``, and of its commands those that a node's container runs: ``kdp run`` and ``kdp probe``.

The commands that people run are in `kdp.admin.commands`. Only these two rooms import click, rich, YAML, and cattrs.

`app` loads a command's file when it is called. `targets` finds and makes the vendor's class, `config` reads the file,
`options` are the flags that commands share, `invocation` puts all of it together. What a command says to people goes to
stdout; logs and errors go to stderr (`streams`).

Exit codes of every command: 0 done, 1 the answer is no (a discovery failed, a plugin did not pass) or could not be
written, 2 something in the command line, the environment or the configuration file is wrong. ``kdp run`` ends with
the exit codes of `kdp.daemon`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from . import asking, streams

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]

_OF_THE_EXTRA = ("click", "cattrs", "rich", "yaml")


def main() -> NoReturn:
    """Run the command of ``sys.argv`` and end the process."""
    if sys.argv[1:2] == ["run"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)  # until `kdp.daemon.signals` is loaded
    if sys.argv[1:2] == ["probe"] and (code := asking.quick(sys.argv[2:])) is not None:
        raise SystemExit(code)
    streams.prepare()
    try:
        from .app import kdp

        kdp(prog_name="kdp")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(
            f"kdp: the command needs {error.name}, which comes with the extra 'cli'; pip install 'kdp-sdk[cli]'\n"
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before there is a command that could end in order
        sys.stderr.write("kdp: aborted\n")
        raise SystemExit(1) from None
    except SystemExit as end:
        raise SystemExit(streams.finish(end.code)) from None
    raise SystemExit(0)


def _stop(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # nothing has begun yet that would have to end in order
