from __future__ import annotations

import inspect
import re

from hypothesis import given
from hypothesis import strategies as st

from kdp import errors
from kdp.errors import sentence

from .strategies import effort

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for match in re.finditer(r"^    ([ │├└─]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        depth, name = len(match[1]), match[2]
        while path and path[-1][0] >= depth:
            path.pop()
        drawn[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    assert drawn == {c.__name__: c.__bases__[0].__name__ for c in CLASSES}


def test_an_invalid_value_is_a_value_error() -> None:
    assert issubclass(errors.InvalidValueError, ValueError)
    assert issubclass(errors.InvalidNameError, errors.InvalidValueError)


def test_our_own_errors_speak_for_themselves() -> None:
    assert sentence(errors.AllocationError("the card is\n  in  use")) == "the card is in use"


def test_of_others_only_the_class_leaves_the_process() -> None:
    error = RuntimeError("password=hunter2")
    assert sentence(error) == "internal error (RuntimeError); the plugin's log has the details"
    assert sentence(errors.AllocationError()) == "internal error (AllocationError); the plugin's log has the details"


def test_what_utf8_cannot_say_is_replaced() -> None:
    assert sentence(errors.HookFailedError("device node /dev/\udc80 is gone")) == "device node /dev/? is gone"


@effort(100)
@given(st.text() | st.text("äß\n ", min_size=300, max_size=2000))
def test_a_sentence_is_one_short_line(text: str) -> None:
    said = sentence(errors.AllocationError(text))
    assert said
    assert len(said.encode()) <= errors.MAX_SENTENCE_BYTES
    assert "\n" not in said
    assert said == " ".join(said.split())
