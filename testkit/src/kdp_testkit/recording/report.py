"""What came of a replay: each thing that the plugin was expected to say, and how what it said compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

Verdict = Literal["same", "different", "not reached"]


@attrs.frozen(kw_only=True)
class Step:
    """One thing that the plugin was expected to say.

    Attributes:
        line: The recording's line with what it said then; 0: there is none.
        time: Seconds since the recording's beginning.
        what: The call and what it is about.
        verdict: How it compares.
        differences: In what, field by field.
    """

    line: int
    time: float
    what: str
    verdict: Verdict
    differences: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Report:
    """What came of a replay.

    Attributes:
        path: The recording.
        steps: In the recording's order.
        problem: Why it could not be played to its end; empty: it could.
        said: The last lines that the plugin printed.
    """

    path: Path
    steps: Sequence[Step]
    problem: str = ""
    said: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the plugin said everything that the recording says."""
        return not self.problem and all(step.verdict == "same" for step in self.steps)

    def count(self, verdict: Verdict) -> int:
        """Return how many steps have this verdict."""
        return sum(1 for step in self.steps if step.verdict == verdict)

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        if self.problem:
            return self.problem
        if self.is_same:
            return f"the plugin answers as recorded: {len(self.steps)} of {len(self.steps)} the same"
        lost = f", {self.count('not reached')} not reached" if self.count("not reached") else ""
        return f"the plugin does not answer as recorded: {self.count('different')} of {len(self.steps)} different{lost}"

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "recording": str(self.path),
            "same": self.is_same,
            "problem": self.problem or None,
            "summary": {name.replace(" ", "_"): self.count(name) for name in ("same", "different", "not reached")},
            "steps": [
                {"line": s.line, "time": s.time, "what": s.what, "verdict": s.verdict, "differences": [*s.differences]}
                for s in self.steps
            ],
        }

    def story(self) -> str:
        """Return what is not the same, a line for each difference, and the outcome."""
        lines = [
            f"line {step.line} ({step.time:.3f} s), {step.what}: {difference}"
            for step in self.steps
            if step.verdict == "different"
            for difference in step.differences
        ]
        return "\n".join([*lines, self.sentence])
