"""What the tests of the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_living_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands see no plugin of the machine."""
    monkeypatch.setenv("KDP_STATE_DIR", str(tmp_path / "no-plugin"))
