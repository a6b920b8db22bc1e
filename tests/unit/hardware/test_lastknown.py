"""`kdp.hardware.LastKnown`: an attribute that fails says what it said, for as long as each scan asks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdp.hardware import LastKnown

KEYS = st.sampled_from("abc")
SAID = st.none() | st.sampled_from(["", "1", "2"])
SCANS = st.lists(st.tuples(st.lists(st.tuples(KEYS, SAID), max_size=6), st.booleans()), max_size=6)


@given(SCANS)
def test_it_is_the_newest_answer_of_the_last_whole_scan_and_of_this_one(
    scans: list[tuple[list[tuple[str, str | None]], bool]],
) -> None:
    last, known = LastKnown(), dict[str, str | None]()
    for questions, raises in scans:
        asked = dict[str, str | None]()
        try:
            with last.scan():
                for key, said in questions:
                    assert last.was_asked(key) == (key in asked)
                    answers = [value for value in (said, asked.get(key), known.get(key)) if value is not None]
                    asked[key] = answers[0] if answers else None
                    assert last.recall(key, said) == asked[key]
                if raises:
                    raise OSError
        except OSError:
            continue
        known = asked
