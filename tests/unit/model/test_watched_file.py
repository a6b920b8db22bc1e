"""`WatchedFile`: good text replaces the content in force, bad text changes nothing and is told."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import kdp
from kdp.model.watched_file import WatchedFile, falling_back_on


def parse(text: str) -> list[str]:
    found: Any = json.loads(text)
    if not isinstance(found, list):
        raise TypeError("expected a list")
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "slots.json"
    path.write_text('["a"]')
    return path


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_good_text_is_in_force_at_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = WatchedFile(path, parse)
    kept: list[str] = []
    file.keep = kept.append
    first = file.current

    assert file.current is first
    replace(path, '["b"]')
    with caplog.at_level(logging.INFO):
        assert file.current == ["b"]
    assert caplog.messages == [f"{path} has changed and is in force"]
    assert kept == ['["b"]']


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "Expecting value: line 1 column 2 (char 1)"),
        ("3", f"TypeError: expected a list ({__file__}, line "),
    ],
)
def test_bad_text_changes_nothing_and_is_one_line(
    path: Path, caplog: pytest.LogCaptureFixture, text: str, sentence: str
) -> None:
    file = WatchedFile(path, parse)
    replace(path, text)

    for _ in range(3):
        file.look_again()
        assert file.current == ["a"]
    assert file.problem is not None
    assert file.problem[0].startswith(f"{path}: {sentence}")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"{file.problem[0]}; the last good content stays in force"

    replace(path, '["a"]')
    with caplog.at_level(logging.INFO):
        assert file.look_again()
    assert file.problem is None
    assert caplog.messages[1:] == [f"{path} is again as it is in force"]


def test_a_file_that_is_gone_leaves_its_content_in_force(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = WatchedFile(path, parse)
    path.unlink()

    assert file.current == ["a"]
    assert caplog.messages == [
        f"{path}: cannot be read (No such file or directory); name another file; the last good content stays in force"
    ]


def test_a_directory_or_a_file_without_an_end_in_its_place_is_bad(path: Path) -> None:
    file = WatchedFile(path, parse)
    path.unlink()
    path.mkdir()
    assert file.current == ["a"]
    assert file.problem is not None
    assert "cannot be read (Is a directory)" in file.problem[0]
    path.rmdir()
    with path.open("wb") as endless:
        endless.truncate(1 << 40)
    assert file.current == ["a"]
    assert file.problem is not None
    assert "cannot be read (it has more than 1048576 bytes)" in file.problem[0]


def test_two_backends_that_read_one_file_have_each_its_own_content(path: Path) -> None:
    names, sizes = WatchedFile(path, parse), WatchedFile(path, len)
    replace(path, '["b"]')
    assert (names.current, sizes.current) == (["b"], 5)
    replace(path, "[")
    assert (names.current, sizes.current) == (["b"], 1)
    assert names.problem is not None
    assert sizes.problem is None


def test_text_of_another_encoding_is_bad(path: Path) -> None:
    file = WatchedFile(path, parse)
    path.write_bytes(b'["\xff"]')

    assert file.current == ["a"]
    assert file.problem is not None
    assert file.problem[0] == f"{path}: is not UTF-8 (byte 2); expected a text file"


def test_a_bad_file_is_refused_at_the_start_if_nothing_was_kept(path: Path) -> None:
    path.write_text("[")
    with pytest.raises(kdp.ConfigurationError, match="Expecting value"):
        WatchedFile(path, parse)
    with falling_back_on(lambda _: "{"), pytest.raises(kdp.ConfigurationError, match=r"slots\.json: Expecting value"):
        WatchedFile(path, parse)


def test_a_bad_file_begins_with_the_text_that_was_kept(path: Path) -> None:
    path.write_text("[")
    asked: list[Path] = []

    def kept(file: Path) -> str:
        asked.append(file)
        return '["kept"]'

    with falling_back_on(kept):
        file = WatchedFile(path, parse)

    assert file.current == ["kept"]
    assert file.problem is not None
    assert asked == [path]
    replace(path, '["mended"]')
    assert file.current == ["mended"]
    assert file.problem is None


def test_both_the_link_and_the_file_that_it_leads_to_are_watched(tmp_path: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    (real / "slots.json").write_text("[]")
    (links / "slots.json").symlink_to(real / "slots.json")

    assert WatchedFile(links / "slots.json", parse).directories() == {str(real), str(links)}


def test_of_a_directory_that_is_gone_the_nearest_parent_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    (directory / "slots.json").write_text("[]")
    file = WatchedFile(directory / "slots.json", parse)

    (directory / "slots.json").unlink()
    directory.rmdir()

    assert file.directories() == {str(tmp_path / "a")}
