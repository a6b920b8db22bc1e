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


def test_the_readme_names_every_ready_file() -> None:
    assert {path.stem for path in (HERE / "configs").iterdir()} <= set(re.findall(r"`([\w-]+)`", README))


@pytest.mark.parametrize("kind", ["resources: [{", "resources: [{groups: [{", "paths: [{", "usb: [{"])
def test_the_readme_has_every_field(kind: str) -> None:
    text = kind + "nonsense: 1"
    prefix = {"paths: [{": "resources: [{name: a.io/x, groups: [{", "usb: [{": "resources: [{name: a.io/x, groups: [{"}
    if kind == "resources: [{groups: [{":
        text = "resources: [{name: a.io/x, groups: [{nonsense: 1"
    text = prefix.get(kind, "") + text
    closing = "".join({"{": "}", "[": "]"}[c] for c in reversed(re.sub(r"[^\[{]", "", text)))
    with pytest.raises(Exception, match=r"known are ([\w, ]+)$") as caught:
        read(text + closing, "f")

    fields = str(caught.value).rpartition("known are ")[2].split(", ")
    assert [field for field in fields if not re.search(rf"`(\w+\[\]\.)*{field}(\[\])?`", README)] == []
