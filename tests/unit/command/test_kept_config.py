from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kdp import ConfigurationError
from kdp.command import kept_config
from kdp.command.invocation import Invocation


def test_an_ordinary_user_is_told_of_the_file_and_not_of_roots_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Path, **_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    missing = tmp_path / "none.yaml"
    invocation = Invocation(targets=["minimal"], assignments=[], config=missing, flags={"state_dir": str(tmp_path)})
    keeper = kept_config.ConfigKeeper(invocation, is_strict=False)
    monkeypatch.setattr("kdp.storage.reading.read", refused)
    with caplog.at_level(logging.INFO), pytest.raises(ConfigurationError, match="cannot be read"):
        keeper.first()
    assert not caplog.messages
