"""May a process with a label keep files in a directory? The kernel answers that for any label: selinux(8), selinuxfs.

So the question is about the plugin, also where the command itself may do everything. The decision is the kernel's own,
with the policy, its booleans, and the categories of both labels. It may block for the file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from .node import number_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RIGHTS: Final = {
    "dir": ("search", "write", "add_name", "remove_name"),
    "file": ("create", "open", "read", "write", "rename", "unlink", "lock"),
}
"""Rights that kdp needs for a file: it writes the file under another name, locks it, and renames it."""

_PERMISSIVE: Final = 1
"""The flag of a domain that the policy only watches."""


def is_enforcing(selinux: Path) -> bool:
    """Return whether SELinux enforces; ``selinux`` is ``/sys/fs/selinux``."""
    return text_of(selinux / "enforce") == "1"


def type_of(label: str) -> str:
    """Return the type of a label, as ``spc_t`` of ``system_u:system_r:spc_t:s0``."""
    return label.split(":")[2] if label.count(":") >= 2 else label


def label_of(directory: Path) -> str:
    """Return the label of a directory; "" if it has none."""
    try:
        return os.getxattr(directory, "security.selinux").decode(errors="replace").strip("\0")
    except OSError:
        return ""


def refused(selinux: Path, label: str, directory: Path) -> list[str]:
    """Return the rights that a process with a label lacks to keep files in a directory.

    Args:
        selinux: ``/sys/fs/selinux``.
        label: The process's.
        directory: The directory; its files get its label.

    Raises:
        OSError: The kernel gave no answer: its file is missing or read-only, or the policy does not know the labels.
    """
    target = label_of(directory)
    return [
        f"{kind} {right}"
        for kind, rights in _RIGHTS.items()
        for right in _lacking(selinux, label, target, kind, rights)
    ]


def _lacking(selinux: Path, source: str, target: str, kind: str, rights: tuple[str, ...]) -> Iterator[str]:
    folder = selinux / "class" / kind
    number = number_of(folder / "index")
    allowed, flags = ask(selinux, f"{source} {target} {number}")
    for right in rights:
        bit = number_of(folder / "perms" / right)
        if bit is not None and not (flags & _PERMISSIVE or allowed >> (bit - 1) & 1):
            yield right


def ask(selinux: Path, question: str) -> tuple[int, int]:
    """Ask the kernel for a decision; return the rights as bits, and the flags.

    Raises:
        OSError: It gave none.
    """
    descriptor = os.open(selinux / "access", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(descriptor, question.encode())
        allowed, *_, flags = os.read(descriptor, 4096).split()
    finally:
        os.close(descriptor)
    return int(allowed, 16), int(flags, 16)
