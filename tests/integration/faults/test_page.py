"""The table of faults: whole, and each sentence its own."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from tests.faults import AllFaults, FaultyKubelet

from . import catalogue, injected
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


def test_each_of_the_85_faults_is_a_method_that_a_test_calls() -> None:
    """Contract section 14, complete: a number without a method, or a method without a test, fails here."""
    assert list(injected.NUMBERS) == list(range(1, 86))
    methods = {**{name: number for number, name in injected.NUMBERS.items()}, **injected.MORE}
    assert {name: injected.told(name)[0] for name in methods} == methods
    called = {
        node.attr if isinstance(node, ast.Attribute) else str(node.value)  # a text: the parameter of a test
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Constant)
    }
    assert sorted(methods.keys() - called) == []


def test_every_method_that_names_a_fault_is_in_the_table() -> None:
    told = {
        name
        for owner in (AllFaults, FaultyKubelet)
        for name in dir(owner)
        if (inspect.getdoc(getattr(owner, name)) or "").startswith("Fault ")
    }
    assert told == {*injected.NUMBERS.values(), *injected.MORE}


def test_no_two_faults_are_told_alike() -> None:
    told = [injected.told(name)[1] for name in (*injected.NUMBERS.values(), *injected.MORE)]
    assert sorted(told) == sorted(set(told))
