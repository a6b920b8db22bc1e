"""The page of the comparison lists exactly the scenarios and the broken rules that there are."""

from __future__ import annotations

import re

from tests.node.nodekit import MINORS
from tests.node.scenarios import SCENARIOS, title
from tests.node.table import PAGE, Row, page
from tests.node.test_broken_rules import RULES


def test_the_page_lists_what_is_played() -> None:
    everything = [
        Row(minor.name, name, "", title(scenario), True) for name, scenario in SCENARIOS.items() for minor in MINORS
    ]
    everything += [Row(rule.minor, rule.scenario, rule.says, title(SCENARIOS[rule.scenario]), True) for rule in RULES]
    assert PAGE.read_text() == page(everything), "run `make simulation`"


def test_a_difference_would_be_told() -> None:
    text = page([Row("1.36", "one", "", "It happens.", False), Row("1.37", "one", "a rule", "It happens.", False)])
    assert re.findall(r"^\| `one` .*", text, re.MULTILINE) == [
        "| `one` | It happens. | not played | **differs** | not played |"
    ]
    assert "| a rule | `one` | 1.37 | **not noticed** |" in text
    assert "0 of 1 plays were seen alike, and 0 of 1 broken rules were noticed" in text
