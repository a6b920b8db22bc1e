"""Makes a process start sooner: names that load on first use, and two costs of loading that are left out.

The figures are of a start to `kdp.run` of 90 to 120 ms on a small virtual machine.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names load on first use (PEP 562).

    The names stand once, in the package's ``__init__.pyi``, which type checkers and editors read, too. Each line of it
    is ``from .module import Name as Name``, or ``from . import module as module``. Gain: 45 ms for `kdp`, and gRPC and asyncio where only the model is used.

    Args:
        package: The package's ``__name__``.
        file: Its ``__file__``.
    """
    with open(os.path.join(os.path.dirname(file), "__init__.pyi"), encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    homes = {name: home for _, home, *_, name in lines}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collections_off():
            found: object = (
                importlib.import_module(f".{name}", package)
                if homes[name] == "."
                else getattr(importlib.import_module(homes[name], package), name)
            )
        setattr(sys.modules[package], name, found)
        return found

    return sorted(homes), load, lambda: sorted({*vars(sys.modules[package]), *homes})


@contextmanager
def collections_off() -> Generator[None]:
    """Collect no garbage while modules load: they leave none. Gain: 26 collections, 5 to 7 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def ldconfig_off() -> Generator[None]:
    """Let no library be looked for by a run of ldconfig, as asyncinotify does when it is imported.

    If it gets no answer, it takes the libc that the process has. Gain: 1.4 to 4 ms, and a process less.
    """
    import ctypes.util

    find_library = ctypes.util.find_library
    ctypes.util.find_library = lambda name: None
    try:
        yield
    finally:
        ctypes.util.find_library = find_library
