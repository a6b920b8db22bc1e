"""Feeds a reader with what nobody meant to write: only the errors that it documents may come out, and soon.

Each run reads the kept corpus first, ``tests/data/fuzz/<name>``: inputs that once got something else out. Then it draws
inputs: good ones that were damaged byte by byte, good JSON with hostile values in it, and noise.
``KDP_TEST_EFFORT=100`` draws a hundred times as many as ``make test-slow``, others in each run. What fails then belongs
into the corpus.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kdp_testkit.patience import PATIENCE

from .unit.strategies import effort

CORPUS = Path(__file__).parent / "data/fuzz"


PIECES = [
    *(
        b"[",
        b"{",
        b"}",
        b"]",
        b":",
        b",",
        b'"',
        b"'",
        b"\n",
        b" ",
        b"-",
        b"\t",
        b"#",
        b"\\",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
    ),
    *(b"[" * 200, b'{"a":' * 200, b"- " * 200, b"? " * 200, b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"x" * 300),
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"1:30",
        b"0403",
        b".inf",
        b"null",
        b"true",
        b"~",
        b"-0",
        b"1e3",
        b"2026-01-01",
    ),
    *(b"&a [*a]", b"*a", b"&a ", b"<<: ", b"!!int ", b"!!python/none ", b"%YAML 9.9\n", b"---\n", b"|\n", b">\n"),
    *(
        b"..",
        b"/",
        b"../../x",
        b"\\u0000",
        b'"\\ud800"',
        "\N{PILE OF POO}ü".encode(),
        b"\xed\xa0\x80",
        b"\x85",
        b"\x1b[2J",
    ),
]
"""What readers stumble over."""

HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**300, 10**400, 0.5, -0.0, 1e308),
    *(
        "",
        " ",
        "\0",
        "..",
        "/",
        "../../x",
        "\ud800",
        "\udc80",
        "a\nb",
        "x" * 300,
        "9" * 5000,
        "1e999",
        "nan",
        "inf",
        "1:30",
    ),
    *([], {}, [[]], [{}], {"": None}, {"\ud800": 1}, [None], ["a", "a"], {"a": [1]}, [0.5], [True]),
]
"""Values of the wrong type, size, or kind."""


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Draw good inputs with pieces put in, taken out, and doubled."""
    place = st.floats(0, 1, exclude_max=True)
    step = st.tuples(
        st.sampled_from("+-2x"), place, st.integers(0, 40), st.sampled_from(PIECES) | st.binary(max_size=4)
    )

    def damage(seed: bytes, steps: list[tuple[str, float, int, bytes]]) -> bytes:
        for what, where, length, piece in steps:
            at = int(where * (len(seed) + 1))
            old = seed[at : at + length]
            new = {"+": piece + old, "-": b"", "2": old + old, "x": piece}[what]
            seed = seed[:at] + new + seed[at + length :]
        return seed

    return st.builds(damage, st.sampled_from(list(seeds)), st.lists(step, min_size=1, max_size=4))


def replaced(documents: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Draw JSON values with one or two of their parts replaced, removed, or joined by others."""
    values = st.sampled_from(HOSTILE) | st.text(max_size=8)

    @st.composite
    def draw(give: st.DrawFn) -> Any:
        found = json.loads(json.dumps(give(st.sampled_from(list(documents)))))
        for _ in range(give(st.integers(1, 2))):
            holder: Any = None
            key: Any = None
            here = found
            while isinstance(here, (dict, list)) and here and give(st.integers(0, 4)):
                holder, key = here, give(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
                here = holder[key]
            value = copy.deepcopy(give(values))  # it may be changed in the next round
            if holder is None:
                found = value if give(st.integers(0, 9)) == 0 else found
            elif isinstance(holder, dict) and give(st.integers(0, 3)) == 0:
                if give(st.booleans()):
                    del holder[key]
                else:
                    holder[give(st.text(max_size=4))] = value
            else:
                holder[key] = value
        return found

    return draw()


def as_bytes(value: Any) -> bytes:
    """Return a value as JSON; what UTF-8 cannot carry stays as it is."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def fuzz(
    name: str,
    read: Callable[[bytes], object],
    errors: tuple[type[Exception], ...],
    inputs: st.SearchStrategy[bytes],
    *,
    examples: int = 300,
) -> int:
    """Read the corpus and drawn inputs; raise what is not one of these errors. Return how many inputs were read."""
    tried = 0

    def attempt(data: bytes) -> None:
        nonlocal tried
        tried += 1
        began = time.monotonic()
        with suppress(*errors):
            read(data)
        took = time.monotonic() - began
        assert took < PATIENCE, f"{data[:200]!r} took {took:.0f} s"

    for file in sorted((CORPUS / name).glob("*")):
        attempt(file.read_bytes())

    @effort(examples)
    @given(inputs | st.binary(max_size=100))
    def run(data: bytes) -> None:
        attempt(data)

    run()
    return tried
