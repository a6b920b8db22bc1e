"""Directories that cannot be used are said at the start."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from kdp.daemon import places
from kdp.daemon.places import warn_of_unusable_state
from kdp.daemon.settings import DEFAULT_STATE_DIR, Settings


@pytest.mark.parametrize(
    ("directory", "user", "level"),
    [(Path("/nowhere"), 0, logging.WARNING), (DEFAULT_STATE_DIR, 1000, logging.INFO)],
)
def test_a_directory_that_was_given_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, directory: Path, user: int, level: int
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(places, "why_no_file", lambda path: "Permission denied")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    warn_of_unusable_state(Settings(state_dir=directory))
    [record] = caplog.records
    assert record.levelno == level
    assert record.getMessage().startswith(f"--state-dir {directory}: nothing can be kept there (Permission denied), so")
