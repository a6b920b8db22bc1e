"""Makes a process start sooner: names that load on first use, and two costs of loading that are left out.

The figures are of a start to `kdp.run` of 90 to 120 ms on a small virtual machine.
"""

from __future__ import annotations

import builtins
import gc
import importlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def lazy_imports(package: dict[str, Any]) -> Generator[None]:
    """Let the imports of a package's ``__init__`` name what loads on first use (PEP 562).

    Inside, ``from .module import name as name`` and ``from . import module as module`` load nothing. Type checkers and
    editors read these lines as what they are, so the names stand once; and nothing is read from a file, which a zip
    archive does not have. `kdp` loads 45 ms faster, and a program that uses only the model loads neither gRPC nor
    asyncio. PEP 810 will do the same without this function.

    Args:
        package: The package's ``globals()``. It gets ``__all__``, ``__getattr__``, and ``__dir__``.
    """
    homes: dict[str, str] = {}

    def note(name: str, importing: Any = None, own: Any = None, names: Any = (), level: int = 0) -> object:
        if importing is not package:  # of another thread
            return imported(name, importing, own, names, level)
        homes.update(dict.fromkeys(names, f".{name}"))
        return SimpleNamespace(**dict.fromkeys(names))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        home = homes[name]
        with collections_off():
            module = importlib.import_module(f".{name}" if home == "." else home, package["__name__"])
        package[name] = found = module if home == "." else getattr(module, name)
        return found

    python: Any = builtins
    imported, python.__import__ = python.__import__, note
    try:
        yield
    finally:
        python.__import__ = imported
    for name in homes:
        del package[name]
    package |= {"__all__": sorted(homes), "__getattr__": load, "__dir__": lambda: sorted({*package, *homes})}


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


def shown(self: Any) -> str:
    """Be the ``__repr__`` of a value that each start loads. attrs compiles one for a class without. Gain: 7 ms."""
    from attrs import fields

    names = [field.alias or field.name for field in fields(self.__class__) if field.repr]
    return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
