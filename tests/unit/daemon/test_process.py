"""`kdp.run` as the last line of a program."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import kdp
from kdp.daemon import process

class Unreadable(list):
    def _read(self, *_):
        raise AssertionError("sys.argv was read")
    __getitem__ = __iter__ = __len__ = __contains__ = _read

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    def discover(self):
        return []

def run_plan(plan, **_):
    print(plan.settings.poll_interval)
    return 7

process.run_plan = run_plan
sys.argv = Unreadable(["widgets.py", "--poll-interval", "99"])
kdp.run(Widgets(), OPTIONS)
"""


def test_run_never_reads_the_command_line() -> None:
    program = PROGRAM.replace("OPTIONS", "poll_interval=3")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "sys.argv was read" not in done.stderr
    assert (done.returncode, done.stdout) == (7, "3.0\n"), done.stderr
