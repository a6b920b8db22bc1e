"""Which kernel modules must be loaded before which: what depmod(8) would find, read from the modules themselves."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .tools import Missing

__all__ = ["Modules"]


class Modules:
    """The modules of a kernel.

    Args:
        kernel: The folder ``lib/modules/VERSION``.
        more: Modules beside it, which come first.
    """

    def __init__(self, kernel: Path, more: Iterable[Path] = ()) -> None:
        self._paths: dict[str, Path] = {}
        for path in [*kernel.rglob("*.ko*"), *more]:
            self._paths[_normal(path.name.partition(".")[0])] = path

    def in_order(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """Return the modules of these names as (name, content), each after those it needs.

        Raises:
            Missing: The kernel has no such module.
        """
        order: dict[str, bytes] = {}
        for name in names:
            self._add(_normal(name), order)
        return [*order.items()]

    def _add(self, name: str, order: dict[str, bytes]) -> None:
        if name in order:
            return
        if name not in self._paths:
            raise Missing(f"the kernel module {name} is missing: run `make hardware-tools`")
        path = self._paths[name]
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        for needed in _needed(content):
            if needed in self._paths:
                self._add(needed, order)
        order[name] = content


def _needed(content: bytes) -> Iterator[str]:
    """Tell what a module's own section .modinfo says: what it links to, and what it asks for before itself."""
    for key, value in re.findall(rb"\0(depends|softdep)=([^\0]*)\0", content):
        text = value.decode()
        if key == b"depends":
            yield from (_normal(name) for name in text.split(",") if name)
        elif (pre := re.match(r"pre: ([^:]*?)(?: post:|$)", text)) is not None:
            yield from (_normal(name) for name in pre[1].split())


def _normal(name: str) -> str:
    return name.replace("-", "_")
