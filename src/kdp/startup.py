"""Makes a process start sooner: names that load on first use, and three costs of loading that are left out.

The figures are of a start to `kdp.run` of 90 to 120 ms on a small virtual machine.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names load on first use (PEP 562).

    The names stand once, in the package's ``__init__.pyi``, which type checkers and editors read, too. Each line of it
    is ``from .module import Name as Name``, or ``from . import module as module``. `kdp` loads 45 ms faster, and a
    program that uses only the model loads neither gRPC nor asyncio.

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
    """Collect no garbage while modules load: they leave none. Gain: 26 collections, 10 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                # What was loaded counts as old at once. The next collection of the young would look at all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def ldconfig_off() -> Generator[None]:
    """Let no library be looked for by a run of ldconfig, as asyncinotify does when it is imported.

    If it gets no answer, it takes the libc that the process has. `ctypes.util` itself, which loads modules for archives
    and temporary files, is not loaded for that. Gain: 4 to 6 ms, and a process less.
    """
    import ctypes

    def find_library(library: str) -> None:
        """Find no library."""

    child = "util"
    name = f"ctypes.{child}"
    loaded, own = sys.modules.get(name), ModuleType(name)
    vars(own)["find_library"] = find_library
    sys.modules[name] = own
    setattr(ctypes, child, own)  # where `import ctypes.util` leaves it
    try:
        yield
    finally:
        if loaded is None:
            del sys.modules[name]
            delattr(ctypes, child)
        else:
            sys.modules[name] = loaded
            setattr(ctypes, child, loaded)


def shown(self: Any) -> str:
    """Be the ``__repr__`` of a value that each start loads. attrs compiles one for a class without. Gain: 7 ms."""
    from attrs import fields

    names = [field.name for field in fields(self.__class__) if field.repr]
    return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
