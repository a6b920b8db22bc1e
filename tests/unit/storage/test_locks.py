"""Locks and the children of their holders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forking import FORK, parent

from kdp.storage import files, locks
from kdp.storage.reading import UnusableFileError
from kdp_testkit.patience import PATIENCE

PARENT = f"""
import os, sys, time
from pathlib import Path
from kdp.storage import files, locks
whole = locks.open_file(Path(sys.argv[1]))
assert locks.lock(whole)
byte = locks.open_file(Path(sys.argv[1]))
assert locks.lock(byte, 7)
shared = locks.open_file(Path(sys.argv[2]))
assert locks.lock(shared, is_shared=True)
files.replace_locked(Path(sys.argv[3]), b"")
def close_once_more():  # as those who had them do, which closes nothing else
    for descriptor in (whole, byte, shared):
        locks.close(descriptor)
os.register_at_fork(after_in_child=close_once_more)
{FORK}
time.sleep(3600)
"""


def test_a_forked_worker_does_not_keep_the_locks_of_its_killed_parent(tmp_path: Path) -> None:
    whole, shared, replaced = (tmp_path / name for name in ("whole", "shared", "replaced"))
    with parent(PARENT, str(whole), str(shared), str(replaced)) as process:
        worker = int(process.line())
        for path in (whole, shared, replaced):
            descriptor = locks.open_file(path)
            assert not locks.lock(descriptor), "the parent lives, and its child has taken nothing from it"
            locks.close(descriptor)
        process.kill_beside(worker)
        for path, byte in ((whole, None), (whole, 7), (shared, None), (replaced, None)):
            descriptor = locks.open_file(path)
            assert locks.lock(descriptor, byte), path
            locks.close(descriptor)


REUSED = """
import os, sys
from pathlib import Path
from kdp.storage import locks
descriptor = locks.open_file(Path(sys.argv[1]))
assert locks.lock(descriptor)
with open(sys.argv[2]) as other:
    os.dup2(other.fileno(), descriptor)  # closed behind our back, and used again
child = os.fork()
if not child:
    os._exit(0 if os.pread(descriptor, 4, 0) == b"text" else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_number_that_another_file_has_since_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("text")
    subprocess.run(
        [sys.executable, "-c", REUSED, str(tmp_path / "f"), str(tmp_path / "other")], check=True, timeout=PATIENCE
    )


def test_a_lock_that_is_shared_excludes_only_those_that_do_not(tmp_path: Path) -> None:
    one, other = locks.open_file(tmp_path / "f"), locks.open_file(tmp_path / "f")
    assert locks.lock(one, is_shared=True)
    assert locks.lock(other, is_shared=True)
    assert not locks.lock(other)
    locks.close(one)
    assert locks.lock(other)
    locks.close(other)


def test_a_lock_file_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(UnusableFileError, match="FIFO"):
        locks.open_file(tmp_path / "f")


def test_a_replaced_file_keeps_its_lock_until_it_is_closed(tmp_path: Path) -> None:
    descriptor = files.replace_locked(tmp_path / "f", b"")
    other = locks.open_file(tmp_path / "f")
    assert not locks.lock(other)
    locks.close(descriptor)
    assert locks.lock(other)
    locks.close(other)
