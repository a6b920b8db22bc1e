"""The tutorial's promise: a backend with attributes and one parameter is a DRA driver in at most 40 lines."""

from __future__ import annotations

import pytest

from .blocks import ROOT, blocks_of

pytestmark = pytest.mark.repository

MOST = 40


def test_the_whole_driver_has_at_most_40_lines() -> None:
    [block] = [
        block for block in blocks_of(ROOT / "docs/tutorial/dra-driver.md") if block.marks.get("file") == "entropy.py"
    ]
    assert all(word in block.text for word in ("attributes=", "config = ", "kdp.run("))
    assert len(block.text.splitlines()) <= MOST
