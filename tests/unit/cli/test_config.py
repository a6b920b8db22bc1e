from __future__ import annotations

from pathlib import Path

import pytest

from kdp import ConfigurationError
from kdp.cli.config import ConfigFile, read
from kdp.daemon.setting import Given


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "poll-interval: 10\nlog_format: json\nset:\n  count: 4\n"),
        ("c.json", '{"poll-interval": 10, "log_format": "json", "set": {"count": 4}}'),
        ("c.toml", 'poll-interval = 10\nlog_format = "json"\nset = {count = 4}\n'),
        ("c.conf", "poll-interval: 10\nlog_format: json\nset: {count: 4}\n"),
    ],
)
def test_every_format_says_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, name, text)
    assert read(path) == ConfigFile(
        settings={
            "poll_interval": Given(f"poll-interval in {path}", 10),
            "log_format": Given(f"log_format in {path}", "json"),
        },
        parameters={"count": Given(f"set.count in {path}", 4)},
    )


def test_no_file_and_an_empty_file_say_nothing(tmp_path: Path) -> None:
    assert read(None) == ConfigFile()
    assert read(written(tmp_path, "c.yaml", "# nothing yet\n")) == ConfigFile()
    assert read(written(tmp_path, "c.yaml", "set:\nhttp:\n")) == ConfigFile()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("c.yaml", "pol-interval: 1", "unknown key 'pol-interval'; did you mean 'poll-interval'?"),
        ("c.yaml", "zzz: 1", "unknown key 'zzz'; known are kubelet-root, "),
        ("c.yaml", "1: 1", "unknown key '1'; known are "),
        ("c.yaml", "- a", "must be a mapping of option names to values, this is a list; valid is 'poll-interval: 10'"),
        ("c.yaml", "a: [", "is not valid YAML: while parsing a flow"),
        ("c.json", "{", "is not valid JSON: Expecting property name"),
        ("c.toml", "a = ", "is not valid TOML: Invalid value (at "),
        ("c.json", f"{'[' * 5000}{']' * 5000}", "is not valid JSON: it is nested too deeply"),
        ("c.yaml", f"{'[' * 5000}{']' * 5000}", "is not valid YAML: it is nested too deeply"),
        (
            "c.json",
            f"{'[' * 101}{']' * 101}",
            "is not valid JSON: it is nested too deeply",
        ),  # Python 3.13 itself goes deeper
        ("c.yaml", "set: &list [*list, *list]", "is not valid YAML: it is nested too deeply"),
        ("c.yaml", "set: {n: !!int ''}", "is not valid YAML: there is an empty number"),
        ("c.yaml", "set: 3", "'set' must be a mapping of constructor parameters to values, this is a int; valid is"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).startswith(f"configuration file {path}: {sentence}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file or directory\)"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        read(binary)
