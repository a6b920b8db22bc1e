"""``python -m kdp_testkit.cli.child``: the command ``kdp`` as a child that does not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from kdp.command import main

from . import own_reads

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent ends, however it ends (prctl(2))."""
    parent = int(os.environ.pop("KDP_PARENT_PID", "0"))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent and os.getppid() != parent:  # it ended before we asked
        sys.exit(0)


if __name__ == "__main__":
    _die_with_parent()
    own_reads.watch(sys.argv)
    main()
