"""Replaces a file, or holds locks of one, in a process of its own that is killed at a step. Run by test_files.py.

usage: python -m tests.unit.storage.killed replace FILE SYNC STEP; STEP is the step that is the last, from 0
       python -m tests.unit.storage.killed lock FILE; says "held", and ends with its stdin
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.killer import Killer

from kdp.storage import files, locks

STEPS = ("open", "fchmod", "fsync", "rename")
NEW = b"new" * 5000


def main() -> None:
    what, file, *more = sys.argv[1:]
    if what == "replace":
        sync: Any
        sync, step = more
        killer = Killer(int(step), tells=2)
        for name in STEPS:
            setattr(os, name, killer.around(name, getattr(os, name)))
        killer.is_armed = True
        files.replace(Path(file), NEW, sync=sync)
    else:
        whole, byte = os.open(file, os.O_RDWR), os.open(file, os.O_RDWR)
        assert locks.lock(whole)
        assert locks.lock(byte, 7)
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
