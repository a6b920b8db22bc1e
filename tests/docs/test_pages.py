"""`make lint` finds the page to which no link leads."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages() -> ModuleType:
    """scripts/pages.py as a module."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "scripts/pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_needs_a_way_from_the_index(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"index": "[a](a.md#part)", "a": "[b](b.md)", "b": "[a](a.md)", "alone": "[index](index.md)"}
    for name, text in texts.items():
        (tmp_path / f"{name}.md").write_text(text)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "INDEX", tmp_path / "index.md")
    monkeypatch.setattr(pages, "PAGES", [*tmp_path.glob("*.md")])
    assert [*pages.unreachable()] == ["alone.md: no links lead here from index.md"]
