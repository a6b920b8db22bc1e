from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from tests.docs.blocks import blocks_of
from tests.docs.running import Reader

from .tables import PAGE, written

HERE = Path(__file__).parents[1]

pytestmark = pytest.mark.repository


def test_the_tables_are_those_of_the_code() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "python -m examples.nvidia_gpu.tests.tables writes them"


def test_the_pod_of_the_page_is_the_one_in_the_folder() -> None:
    (shown,) = (yaml.safe_load(block.text) for block in blocks_of(PAGE) if block.language == "yaml")
    assert shown == yaml.safe_load((HERE / "pod.yaml").read_text())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing, which makes the fake libnvidia-ml")
@pytest.mark.pages
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(HERE / "README.md") if block.category == "executed"]
    reader = Reader(tmp_path)
    for block in blocks:
        reader.do(block)
    assert reader.done
