from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdp.command.invocation import Invocation

CARDS = """
import kdp

class Cards(kdp.DeviceBackend):
    resource = "example.com/card"
    renamed_options = {"max_errors": "ecc_limit"}

    def __init__(self, ecc_limit: int = 3) -> None:
        self.ecc_limit = ecc_limit

    def discover(self):
        return []
"""


@pytest.mark.parametrize("in_file", ["max_errors", "ecc_limit"])
@pytest.mark.parametrize("stronger", [("--set", "max_errors"), ("--set", "ecc_limit"), ("KDP_SET_MAX_ERRORS", "")])
def test_old_and_new_name_of_an_option_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: str, stronger: tuple[str, str]
) -> None:
    (tmp_path / "cards.py").write_text(CARDS)
    config = tmp_path / "config.yaml"
    config.write_text(f"set: {{{in_file}: 4}}")
    way, name = stronger
    if way != "--set":
        monkeypatch.setenv(way, "5")
    target = f"{tmp_path}/cards.py:Cards"
    invocation = Invocation(targets=[target], assignments=[f"{name}=5"] if name else [], config=config, flags={})
    backend: Any = invocation.plan().backends[0]
    assert backend.ecc_limit == 5
    assert [(each, value) for each, _, value in invocation.parameters()] == [("ecc_limit", 5)]
