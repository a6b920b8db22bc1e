"""The plugins that a page shows: those of this node, again and again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kdp.admin.commands.status_sources import NodePlugins
from kdp.command import asking

from .test_status import ANSWER

GOOD = 0, json.dumps(ANSWER)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], tuple[int, str]]]:
    """What answers at each socket."""
    found: dict[str, Callable[[], tuple[int, str]]] = {}
    monkeypatch.setattr(asking, "ask", lambda path, _: found[path]())
    return found


def test_a_plugin_without_an_answer_keeps_its_last_status(answers: dict[str, Callable[[], tuple[int, str]]]) -> None:
    plugins = NodePlugins([Path("a")], lambda: [Path("a")])
    answers["a"] = lambda: GOOD
    [before] = plugins.look()
    answers["a"] = lambda: (1, "a: Connection refused; is the plugin running, and is this its socket?\n")
    [after] = plugins.look()
    assert (before.problem, after.problem) == ("", "a: Connection refused")
    assert (after.status, after.at) == (before.status, before.at)


def test_what_is_no_status_has_never_answered(answers: dict[str, Callable[[], tuple[int, str]]]) -> None:
    answers["a"] = lambda: (0, "{}")
    [found] = NodePlugins([Path("a")], list).look()
    assert (found.status, found.problem.startswith("a: its answer is no status of kdp")) == (None, True)


def test_a_plugin_that_comes_is_shown_and_one_that_goes_is_not(
    answers: dict[str, Callable[[], tuple[int, str]]],
) -> None:
    there = [Path("a")]
    plugins = NodePlugins(there, lambda: there)
    answers |= dict.fromkeys("ab", lambda: GOOD)
    assert [each.place for each in plugins.look()] == ["a"]
    there = [Path("a"), Path("b")]
    assert [each.place for each in plugins.look()] == ["a", "b"]
    there = [Path("b")]
    assert [each.place for each in plugins.look()] == ["b"]
    there = []
    assert [each.place for each in plugins.look()] == ["b"], "one plugin restarts: it is asked until it answers"


def test_a_plugin_that_hangs_costs_a_deadline_only(
    answers: dict[str, Callable[[], tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    monkeypatch.setattr(asking, "DEADLINE", 0.1)
    answers |= {"a": lambda: (0, str(end.wait(30))), "b": lambda: GOOD}
    silent, good = NodePlugins([Path("a"), Path("b")], list).look()
    end.set()
    assert (silent.problem, good.problem) == ("no answer within 0.1 s", "")
