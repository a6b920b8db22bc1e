"""The table of faults: whole, and each sentence its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from . import catalogue
from .catalogue import Fault

HERE = Path(__file__).parent


def test_every_fault_has_a_test() -> None:
    used = {
        node.attr
        for path in HERE.glob("test_*.py")
        if path != Path(__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Fault"
    }
    assert used == {fault.name for fault in Fault}


@pytest.mark.skipif("catalogue.ROWS in os.environ", reason="the page is being written")
def test_the_page_has_every_fault_and_nothing_else() -> None:
    assert catalogue.PAGE.read_text() == catalogue.render(catalogue.on_page())
    assert list(catalogue.on_page()) == list(Fault)


@pytest.mark.skipif("catalogue.ROWS in os.environ", reason="the page is being written")
def test_no_two_faults_share_a_sentence() -> None:
    sentences = [row.split(" | ")[1] for row in catalogue.on_page().values()]
    assert sorted(sentences) == sorted(set(sentences))
