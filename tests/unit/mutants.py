"""Mutants: copies of a module with one line changed, to show that the tests would notice.

A mutant is text against text, so that it is read as easily as the line that it breaks. When the module is edited, and
the line is no longer there, the mutant says so and is to be written anew.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType

import attrs


class InvariantBrokenError(AssertionError):
    """An invariant of a module's head does not hold."""


def holds(number: int, truth: object, what: str) -> None:
    """Raise unless an invariant holds."""
    if not truth:
        raise InvariantBrokenError(f"invariant {number}: {what}")


@attrs.frozen
class Mutant:
    """One change to a module's source, and the invariant that it breaks."""

    invariant: int
    name: str
    old: str
    new: str

    def load(self, module: str) -> ModuleType:
        """Return the changed module under a name of its own; the real one is not touched."""
        source = inspect.getsource(importlib.import_module(module))
        assert source.count(self.old) == 1, (
            f"mutant {self.name!r} must change {self.old!r}, which {module} has {source.count(self.old)} times and "
            "not once: write the mutant anew for the module as it is now"
        )
        name = f"{module}_mutant"
        mutant = ModuleType(name)
        mutant.__package__ = module.rpartition(".")[0]
        sys.modules[name] = mutant
        try:
            exec(compile(source.replace(self.old, self.new), f"<{self.name}>", "exec"), mutant.__dict__)  # noqa: S102
        finally:
            del sys.modules[name]
        return mutant
