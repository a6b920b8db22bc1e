from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kdp_example_generic.config import Config
from kdp_example_generic.reload import ConfigFile

ONE = "resources:\n  - name: a.io/one\n    groups: [{paths: [{path: /dev/one}]}]\n"
TWO = ONE.replace("one", "two")


def _names(config: Config) -> list[str]:
    return [resource.name for resource in config.resources]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(ONE)
    return path


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_changed_file_is_in_force_and_says_so(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ConfigFile(file)

    _replace(file, TWO)
    with caplog.at_level(logging.INFO):
        assert _names(config.refresh()) == ["a.io/two"]

    assert [record.getMessage() for record in caplog.records] == [f"{file} has changed and is in force: a.io/two"]


def test_an_invalid_file_leaves_the_one_before_in_force_with_one_sentence(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConfigFile(file)

    _replace(file, ONE.replace("path: /dev/one", "path: dev/one"))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert _names(config.refresh(changed=True)) == ["a.io/one"]

    (record,) = caplog.records
    assert record.getMessage() == (
        f"{file}, line 3: resources[0].groups[0].paths[0].path: 'dev/one' must be an absolute path; valid is for "
        "example /dev/ttyUSB*; the previous configuration stays in force"
    )
    caplog.clear()
    _replace(file, ONE)
    with caplog.at_level(logging.INFO):
        config.refresh()
    assert [record.getMessage() for record in caplog.records] == [f"{file} is again the configuration in force"]


def test_a_file_that_is_gone_leaves_its_configuration_in_force(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ConfigFile(file)

    file.unlink()

    assert _names(config.refresh()) == ["a.io/one"]
    assert "cannot be read (No such file or directory)" in caplog.text
    assert len(caplog.records) == 1


def test_both_the_link_and_what_it_leads_to_are_watched(tmp_path: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    (real / "config.yaml").write_text(ONE)
    (links / "config.yaml").symlink_to(real / "config.yaml")

    assert ConfigFile(links / "config.yaml").directories() == {str(real), str(links)}


def test_of_a_directory_that_is_gone_the_nearest_parent_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(ONE)
    config = ConfigFile(directory / "config.yaml")

    (directory / "config.yaml").unlink()
    directory.rmdir()

    assert config.directories() == {str(tmp_path / "a")}
