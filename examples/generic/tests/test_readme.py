from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdp_example_generic.config import read

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE))
def test_every_configuration_in_the_readme_is_valid(text: str) -> None:
    assert read(text, "README.md").resources
