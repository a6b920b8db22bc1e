"""Print pip constraints that hold every direct dependency at the lower bound that pyproject.toml declares.

``make floors`` runs the tests with them: a bound that nobody has tried is only a guess. It reads pyproject.toml itself,
so that there is no second list to keep.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def constraints(project: Path = PROJECT) -> list[str]:
    """Turn each ``name>=version`` into ``name==version``.

    Args:
        project: The pyproject.toml to read.

    Returns:
        One constraint for each dependency, those of the extras included, sorted.

    Raises:
        SystemExit: A dependency declares no lower bound.
    """
    table = tomllib.loads(project.read_text("utf-8"))["project"]
    declared: list[str] = list(table["dependencies"])
    for extra in table["optional-dependencies"].values():
        declared += extra
    pins: set[str] = set()
    for requirement in declared:
        match = re.match(r"(?P<name>[A-Za-z0-9._-]+)(?:\[.*?\])?>=(?P<version>[0-9][0-9.]*)", requirement)
        if match is None:
            raise SystemExit(f"{project.name}: {requirement!r} has no lower bound; write it as name>=version")
        pins.add(f"{match['name']}=={match['version']}")
    return sorted(pins, key=str.lower)


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints()) + "\n")
