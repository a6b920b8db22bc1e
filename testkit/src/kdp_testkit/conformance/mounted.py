"""``python -m kdp_testkit.conformance.mounted ROOT -- COMMAND``: run a program for which ROOT is ``/var/lib/kubelet``.

For plugins that have the kubelet's directory built in. The program gets a mount namespace of its own, so nobody else
sees it, and nothing is left of it at its end. Needs root (CAP_SYS_ADMIN). The process stays the same: it execs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_MOVE = 0x1000, 0x4000, 0x40000, 0x2000

_PARENT = Path("/var/lib")
KUBELET = _PARENT / "kubelet"

_PREFIX = "private mount: "


def why_not() -> str | None:
    """Return why this process cannot give a program such a namespace; None: it can."""
    with tempfile.TemporaryDirectory(prefix="kdp-") as root:
        command = [sys.executable, "-m", __name__, root, "--", sys.executable, "-c", ""]
        tried = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - ours
    return tried.stderr.strip().removeprefix(_PREFIX) if tried.returncode else None


def _check(result: int, what: str) -> None:
    if result != 0:
        sys.stderr.write(f"{_PREFIX}{what}: {os.strerror(ctypes.get_errno())}\n")
        raise SystemExit(126)


def main() -> NoReturn:
    """Make the namespace, mount, and become the program."""
    root, dashes, *command = sys.argv[1:]
    if dashes != "--" or not command:
        raise SystemExit(f"usage: python -m {__spec__.name} ROOT -- COMMAND...")
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str | None, flags: int) -> None:
        done = libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None)
        _check(done, f"mount {target}")

    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    if not KUBELET.is_dir():
        _make_kubelet_directory(mount)
    mount(root, str(KUBELET), None, _MS_BIND | _MS_REC)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the program that the user named
    except OSError as error:
        sys.stderr.write(f"{_PREFIX}{command[0]}: {error.strerror}\n")
        raise SystemExit(127) from None


def _make_kubelet_directory(mount: object) -> None:
    """Put a directory over ``/var/lib`` that has everything of it and an empty ``kubelet``; the disk stays as it is."""
    assert callable(mount)
    stage = tempfile.mkdtemp(prefix="kdp-lib-")
    mount("tmpfs", stage, "tmpfs", 0)
    for entry in _PARENT.iterdir():
        twin = Path(stage, entry.name)
        if entry.is_symlink():
            twin.symlink_to(os.readlink(entry))
        elif entry.is_dir():
            twin.mkdir()
            mount(str(entry), str(twin), None, _MS_BIND | _MS_REC)
    Path(stage, "kubelet").mkdir()
    mount(stage, str(_PARENT), None, _MS_MOVE)
    os.rmdir(stage)


if __name__ == "__main__":
    main()
