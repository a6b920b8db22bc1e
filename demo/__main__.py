"""``python -m demo``, from the root of the repository: the command of ``make demo``.

Exit code 0: the story came out as it must. 1: a step failed, one sentence says which. 128 + N: ended by signal N.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .hardware import PLUGGABLE, Unavailable
from .processes import DemoFailed
from .story import Options, Story

if TYPE_CHECKING:
    from types import FrameType


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _frame: FrameType | None) -> None:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)  # cleaning up is under way and short
    raise SystemExit(128 + number)


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=PLUGGABLE, help="what is unplugged; default: the best that can be had here")
    for name, text in (
        ("start", "seconds that each start of the kubelet takes longer"),
        ("listen", "seconds between bind(2) and listen(2) of kubelet.sock"),
    ):
        parser.add_argument(f"--{name}-delay", type=float, default=0.0, metavar="S", help=text)
    parser.add_argument("--deadline", type=float, default=15.0, metavar="S", help="seconds that one wait may take")
    given = parser.parse_args()
    for number in _ENDING:
        signal.signal(number, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="kdp-demo-", ignore_cleanup_errors=True) as directory:
            Story(Options(**vars(given)), Path(directory)).tell()
    except (DemoFailed, Unavailable) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
