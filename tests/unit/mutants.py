"""Mutants: copies of a module with one line changed, to show that the tests would notice.

A mutant is text against text, so that it is read as easily as the line that it breaks. When the module is edited, and
the line is no longer there, the mutant says so and is to be written anew.

`live` lives the lives of a state machine with the real module or with a mutant of it; `assert_killed` asks that one of
them notices.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

import attrs
import pytest
from hypothesis import Phase, seed
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from .strategies import EFFORT, effort


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


def each_mutant(mutants: Iterable[Mutant]) -> pytest.MarkDecorator:
    """Mark a test that each of these is to be killed by: a slow one, which reads this repository's sources."""
    marks = (pytest.mark.repository, pytest.mark.slow, pytest.mark.alike)
    return pytest.mark.parametrize(
        "mutant", [pytest.param(each, id=f"{each.invariant}-{each.name}", marks=marks) for each in mutants]
    )


def live(
    machine: type[RuleBasedStateMachine],
    *,
    examples: int,
    steps: int,
    number: int = 0,
    least: int = 1,
    shrinks: bool = True,
    **attributes: object,
) -> None:
    """Live so many lives of a state machine.

    Args:
        machine: Its class.
        examples: How many.
        steps: The longest, in steps.
        number: Which ones.
        least: How many of them are lived in any case.
        shrinks: Whether a life that fails is made shorter; it is for nothing where it only has to be noticed.
        **attributes: What the class is to have besides, as ``module``.
    """
    subject = type(machine.__name__, (machine,), attributes)
    if EFFORT <= 1:
        seed(number)(subject)
    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    least = least if shrinks else examples  # a mutant's lives end with the first that notices it
    more = {"stateful_step_count": steps, "report_multiple_bugs": False, "print_blob": False}
    settings = effort(examples, least=least, phases=phases, **more)
    run_state_machine_as_test(subject, settings=settings)


def assert_killed(mutant: Mutant, lives: Iterable[Callable[[], object]]) -> None:
    """Live until a life breaks the mutant's invariant; fail when none does."""
    broken: list[str] = []
    for attempt in lives:
        try:
            attempt()
        except InvariantBrokenError as error:
            broken.append(str(error))
            if broken[-1].startswith(f"invariant {mutant.invariant}:"):
                return
    pytest.fail(f"it lives; what was found: {broken}")
