"""The kernel's lists of mounts, for tests of commands that ask which process has a directory of the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdp.storage import mounts

NODE = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def show_mounts(monkeypatch: pytest.MonkeyPatch, proc: Path, lists: dict[str, str]) -> None:
    """Have kdp read these lists of mounts, by process, instead of the kernel's."""
    for process, text in lists.items():
        (proc / process).mkdir(parents=True, exist_ok=True)
        (proc / process / "mountinfo").write_text(text)
    monkeypatch.setattr(mounts, "PROC", proc)


def show_plugin(monkeypatch: pytest.MonkeyPatch, proc: Path, state_dir: Path) -> None:
    """Have this process look like a plugin in a pod, which has the state directory mounted."""
    of_pod = f"9 8 0:50 / / rw - overlay overlay rw\n10 9 8:1 {state_dir} /var/lib/kdp rw - ext4 /dev/sda1 rw\n"
    show_mounts(monkeypatch, proc, {"self": NODE, str(os.getpid()): of_pod})
