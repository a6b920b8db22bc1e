"""Print pip constraints that hold every direct dependency at the lower bound that pyproject.toml declares.

``make floors`` runs the tests with them: a bound that nobody has tried is only a guess. It reads pyproject.toml itself,
so that there is no second list to keep.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (ROOT / "pyproject.toml", ROOT / "testkit" / "pyproject.toml")


def constraints(*projects: Path) -> list[str]:
    """Turn each ``name>=version`` into ``name==version``.

    Args:
        *projects: Each pyproject.toml to read; without one, those of kdp and of its test kit.

    Returns:
        One constraint for each dependency, those of the extras included, sorted.

    Raises:
        SystemExit: A dependency declares no lower bound.
    """
    pins: set[str] = set()
    for project, requirement in _requirements(projects or PROJECTS):
        if requirement.startswith("kdp-"):
            continue  # of this repository: of the same version, not of a lowest one
        match = re.match(r"(?P<name>[A-Za-z0-9._-]+)(?:\[.*?\])?>=(?P<version>[0-9][0-9.]*)", requirement)
        if match is None:
            raise SystemExit(f"{project.name}: {requirement!r} has no lower bound; write it as name>=version")
        pins.add(f"{match['name']}=={match['version']}")
    return sorted(pins, key=str.lower)


def _requirements(projects: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for project in projects:
        table = tomllib.loads(project.read_text("utf-8"))["project"]
        for declared in (table["dependencies"], *table.get("optional-dependencies", {}).values()):
            for requirement in declared:
                yield project, requirement


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints()) + "\n")
