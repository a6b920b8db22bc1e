"""The first file system of a guest: busybox, kernel modules and `init.sh`, as an archive that the kernel unpacks.

The format is cpio's "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["pack"]

_INIT: Final = Path(__file__).with_name("init.sh")
_FOLDERS: Final = ("bin", "dev", "modules", "proc", "sys", "root", "host", "own")
_LINK, _FILE, _FOLDER = 0o120777, 0o100755, 0o040755


def pack(archive: Path, busybox: Path, modules: Iterable[tuple[str, bytes]]) -> None:
    """Write the archive.

    Args:
        archive: The file.
        busybox: A statically linked busybox.
        modules: Names and contents, in the order of loading.
    """
    loaded = [*modules]
    entries = [
        *((name, _FOLDER, b"") for name in _FOLDERS),
        ("bin/busybox", _FILE, busybox.read_bytes()),
        ("bin/sh", _LINK, b"busybox"),
        ("init", _FILE, _INIT.read_bytes()),
        ("modules/order", _FILE, "".join(f"{name}\n" for name, _ in loaded).encode()),
        *((f"modules/{name}.ko", _FILE, content) for name, content in loaded),
        ("TRAILER!!!", 0, b""),
    ]
    with archive.open("wb") as file:
        for number, (name, mode, content) in enumerate(entries, 1):
            path = name.encode() + b"\0"
            links = 1 if mode else 0
            fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(path), 0)
            file.write(b"070701" + b"".join(b"%08X" % field for field in fields) + path)
            file.write(bytes(-(6 + 8 * len(fields) + len(path)) % 4))
            file.write(content + bytes(-len(content) % 4))
