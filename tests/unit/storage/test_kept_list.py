"""A small list that outlives the process."""

from __future__ import annotations

from pathlib import Path

from kdp.storage.kept_list import KeptList


def test_a_list_that_could_not_be_kept_says_so_to_its_writer(tmp_path: Path) -> None:
    """Nobody tried again: what Events had told was lost with the next restart."""
    (tmp_path / "file").touch()
    kept = KeptList(tmp_path / "file/told.json", "failed", "x")
    assert not kept.write([["example.com/w", "w0"]])
    (tmp_path / "file").unlink()
    assert kept.write([["example.com/w", "w0"]])
    assert kept.read() == [["example.com/w", "w0"]]
