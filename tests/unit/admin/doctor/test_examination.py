"""The examination: beside each other, with a deadline, whatever a question or a plugin does."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.admin.doctor.answers import Answer, Question, Verdict, examine, failed, not_known, ok, warning, worst
from kdp.admin.doctor.catalogue import QUESTIONS
from kdp.admin.doctor.living import plugin_of
from kdp.admin.doctor.node import Node, Once
from kdp_testkit.patience import PATIENCE

from .samples import device, node_in, resource, status


def asking(answer: Answer | Exception, seconds: float = 0.0) -> Question[Any]:
    def ask(node: Node) -> Answer:
        time.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Question(id="q", title="?", why="w", ask=ask)


def test_each_question_is_answered_in_its_order(tmp_path: Path) -> None:
    found = examine([asking(ok("a"), 0.1), asking(failed("b", "r")), asking(warning("c", "r"))], node_in(tmp_path))
    assert [each.answer.seen for each in found] == ["a", "b", "c"]


def test_a_question_that_hangs_costs_its_deadline_only(tmp_path: Path) -> None:
    end = threading.Event()
    stuck: Question[Any] = Question(id="s", title="?", why="w", ask=lambda node: ok(str(end.wait(30))))
    began = time.monotonic()
    found = examine([stuck, asking(ok("a")), stuck], node_in(tmp_path), deadline=0.3)
    assert time.monotonic() - began < PATIENCE
    end.set()
    assert [each.answer.verdict.value for each in found] == ["not known", "ok", "not known"]
    assert found[0].answer.seen == "no answer within 0.3 s"


@pytest.mark.thorough
def test_a_dead_file_system_costs_only_the_questions_that_look_at_it(tmp_path: Path) -> None:
    end = threading.Event()

    def hang() -> Any:
        end.wait(30)
        return ()

    node = attrs.evolve(node_in(tmp_path), find_sockets=Once(hang), find_host=Once(hang))
    found = {each.question.id: each.answer for each in examine(QUESTIONS, node, deadline=4.0)}
    end.set()
    assert found["plugin"].seen == found["cdi-runtime"].seen == "no answer within 4 s"
    assert found["kubelet-socket"].verdict is Verdict.FAILED
    assert found["state-directory"].seen.endswith("at its first start")


def test_a_question_that_fails_costs_no_other(tmp_path: Path) -> None:
    found = examine([asking(ValueError("x\x1b[31m")), asking(ok("a"))], node_in(tmp_path))
    assert found[0].answer.verdict is Verdict.NOT_KNOWN
    assert "this question failed: ValueError: x\\x1b[31m" in found[0].answer.seen
    assert found[1].answer.verdict is Verdict.OK


def test_without_threads_the_answers_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    [found] = examine([asking(ok("a"))], node_in(tmp_path))
    assert found.answer.seen == "the system refused a thread for this question"


def test_what_does_not_print_is_escaped_and_a_long_text_is_cut(tmp_path: Path) -> None:
    [found] = examine([asking(failed("a\x1b]0;b\n\u202e", "x" * 5000))], node_in(tmp_path))
    assert found.answer.seen == "a\\x1b]0;b\\n\\u202e"
    assert len(found.answer.remedy) == 1000


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([ok("a"), warning("b", "r")], Verdict.WARNING),
        ([warning("a", "r"), not_known("b")], Verdict.NOT_KNOWN),
        ([not_known("a"), failed("b", "r")], Verdict.FAILED),
        ([failed("a", "r"), warning("b", "r")], Verdict.FAILED),
    ],
)
def test_the_worst_answer_counts(tmp_path: Path, answers: list[Answer], verdict: Verdict) -> None:
    assert worst(examine([asking(each) for each in answers], node_in(tmp_path))) is verdict


HOSTILE: list[Any] = [
    {},
    {"ready": True, "resources": 7},
    {"ready": True, "resources": [7, None, {"name": 7, "devices": "x", "healthy": None, "listed": 7}]},
    {"ready": False, "reason": {}, "backends": [[]], "resources": [{"listed": [7, {"nodes": 7, "id": []}]}]},
    status(resource(device("\x1b[31m\ud800"), name="\x1b" * 1000), kdp=[], pid="x", mode={}),
]


@pytest.mark.thorough
def test_no_status_document_ends_a_question(tmp_path: Path) -> None:
    many = status(resource(*(device(f"w{n}", reason="r" * 50, nodes=[f"/dev/w{n}"]) for n in range(20_000))))
    for document in (*HOSTILE, many):
        found = examine(QUESTIONS, node_in(tmp_path, document), deadline=30.0)
        assert not [each for each in found if "this question failed" in each.answer.seen]
        assert json.dumps([each.answer.seen for each in found]).isprintable()
        assert all(each.answer.seen.isprintable() for each in found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"ready": true, "resources": 7}', ".resources: expected a list, not a number"),
    ],
)
def test_a_text_that_is_no_document(tmp_path: Path, text: str, why: str) -> None:
    assert plugin_of(tmp_path, 0, text).problem == f"its answer is not a status of kdp ({why})"
    assert plugin_of(tmp_path, 1, "").problem == "it closed the connection"


def test_several_plugins_are_asked_beside_each_other(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def ask(path: Path) -> tuple[int, str]:
        together.wait(10)
        return 1, "no"

    node = node_in(tmp_path, *("no",) * 3, ask=ask)
    assert [each.problem for each in node.plugins()] == ["no"] * 3
