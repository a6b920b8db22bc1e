"""The page about trust names tests: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "explanation" / "trust.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


def test_every_row_names_a_test() -> None:
    rows = [
        line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| Who |", "| Found |"))
    ]
    assert len(rows) > 20
    assert not [row for row in rows if "`tests/" not in row]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert re.search(rf"^\s*(async )?def {name}\b" if name else "def test_", (ROOT / file).read_text(), re.MULTILINE)
