"""Every code block of README and docs is run here, or says which level of the tests runs it."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .blocks import LEVELS, PAGES, ROOT, Block, blocks_of
from .running import Reader

pytestmark = pytest.mark.repository

WITH_BLOCKS = [page for page in PAGES if any(block.category == "executed" for block in blocks_of(page))]
LONG = {
    f"docs/{page}.md"
    for page in (
        "backends/nvidia-gpu",
        "how-to/prove-your-plugin",
        "how-to/record-and-replay",
        "how-to/run-as-a-dra-driver",
        "tutorial/dra-driver",
    )
}
"""Pages whose commands take more than five seconds together: for `make test-slow`. `make test` has the README alone."""


def _case(page: Path) -> Any:
    name = page.relative_to(ROOT).as_posix()
    marks = {"README.md": []}.get(name, [pytest.mark.slow if name in LONG else pytest.mark.pages])
    return pytest.param(page, id=name, marks=marks)


@pytest.mark.parametrize("page", [_case(page) for page in WITH_BLOCKS])
def test_every_block_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    wanted = [block for block in blocks_of(page) if block.category == "executed"]
    if shutil.which("gcc") is None and any("kdp_nvidia_gpu.fake" in block.text for block in wanted):
        pytest.skip("gcc is missing, which makes the library of examples/nvidia_gpu")
    reader = Reader(tmp_path)

    for block in wanted:
        reader.do(block)

    assert reader.done == wanted


def test_every_block_has_its_category(figure: Callable[[str, float, str], None]) -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    lost = [
        f"{block.where} ({block.language or 'no language'}, {block.marks})" for block in blocks if not block.category
    ]
    assert not lost

    for category, count in sorted(Counter(_counted(block) for block in blocks).items()):
        figure(f"docs: {category}", count, "blocks")
    executed = [block for block in blocks if block.category == "executed"]
    assert {block.page for block in executed} == {page.relative_to(ROOT).as_posix() for page in WITH_BLOCKS}
    assert executed


def _counted(block: Block) -> str:
    if block.category != "elsewhere":
        return str(block.category)
    level = block.marks["level"].partition(":")[0]
    return f"not run here, {level} ({LEVELS[level]})"


def test_no_fence_is_overlooked() -> None:
    """A fence that is not closed, or that the collector cannot read, would hide a block."""
    for page in PAGES:
        fences = len(re.findall(r"^ *```", page.read_text(), re.MULTILINE))
        assert fences == 2 * len(blocks_of(page)), page
