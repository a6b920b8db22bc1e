"""Which configuration a label of the node names, and what happens if it names none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdp.command.chosen_config import ConfigChoice
from kdp.errors import ConfigurationError

KEY = "example.com/kdp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory as a mounted ConfigMap is: its files are links, and what they lead to is hidden."""
    folder = tmp_path / "configs"
    (folder / "..data").mkdir(parents=True)
    for name in ("default.yaml", "shared.yaml", "whole.json", "plain"):
        (folder / "..data" / name).write_text("{}")
        os.symlink(Path("..data") / name, folder / name)
    return folder


def choice(folder: Path, state: Path | None = None) -> ConfigChoice:
    return ConfigChoice(folder, KEY, state_dir=state)


@pytest.mark.parametrize(
    ("labels", "name"),
    [({}, "default.yaml"), ({KEY: "whole"}, "whole.json"), ({KEY: "plain"}, "plain")],
)
def test_the_labels_value_names_a_file(folder: Path, labels: dict[str, str], name: str) -> None:
    chosen = choice(folder)
    chosen.take(labels)

    assert chosen.file() == chosen.first() == folder / name
    assert chosen.problem is None


def test_a_name_that_no_file_has_is_refused_with_those_that_there_are(folder: Path) -> None:
    chosen = choice(folder)
    chosen.take({KEY: "sharde"})

    with pytest.raises(ConfigurationError) as refused:
        chosen.file()

    assert str(refused.value) == (
        f"node label {KEY}=sharde names no configuration in {folder}: 'sharde'; did you mean 'shared'?"
    )
    assert chosen.names() == ["default", "plain", "shared", "whole"]


def test_a_fifo_in_the_directory_is_no_configuration(folder: Path) -> None:
    """Nobody named it: it would keep the plugin waiting."""
    os.mkfifo(folder / "piped.yaml")
    chosen = choice(folder)
    chosen.take({KEY: "piped"})

    with pytest.raises(ConfigurationError, match="names no configuration"):
        chosen.file()


@pytest.mark.parametrize("value", ["../configs/shared", ".hidden"])
def test_no_name_leads_out_of_the_directory(folder: Path, value: str) -> None:
    (folder / ".hidden").write_text("{}")
    chosen = choice(folder)
    chosen.take({KEY: value})

    with pytest.raises(ConfigurationError):
        chosen.file()


def test_at_the_start_a_name_that_no_file_has_leaves_the_one_of_before(folder: Path, tmp_path: Path) -> None:
    before = choice(folder, tmp_path / "state")
    before.take({KEY: "shared"})
    before.keep()

    chosen = choice(folder, tmp_path / "state")
    chosen.take({KEY: "nosuch"})

    assert chosen.first() == folder / "shared.yaml"
    assert chosen.problem is not None
    assert chosen.problem.endswith("; shared is in force")
    chosen.keep()  # what names nothing is not remembered
    again = choice(folder, tmp_path / "state")
    assert again.first() == folder / "shared.yaml"


def test_without_an_answer_the_one_of_before_is_used_else_the_default(folder: Path, tmp_path: Path) -> None:
    first = choice(folder, tmp_path / "state")
    assert first.first() == folder / "default.yaml"
    assert first.problem == (f"the node's label {KEY} is not known: the API server did not answer; default is in force")
    first.keep()
    assert not (tmp_path / "state").exists()
    first.take({KEY: "whole"})
    first.keep()

    assert choice(folder, tmp_path / "state").first() == folder / "whole.json"
    # Another label, or another directory, has a choice of its own.
    assert ConfigChoice(folder, "other", state_dir=tmp_path / "state").first() == folder / "default.yaml"


@pytest.mark.parametrize(
    ("key", "place", "sentence"),
    [
        ("a b", "configs", "--config-label: label name 'a b': must be"),
        (KEY, "configs/default.yaml", "with --config-label it must be a directory"),
    ],
)
def test_what_is_given_wrong_is_one_sentence(folder: Path, key: str, place: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ConfigChoice(folder.parent / place, key, state_dir=None)
