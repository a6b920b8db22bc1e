from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdp import ConfigurationError
from kdp.command.config import ConfigFile, read
from kdp.daemon.setting import GivenValue
from kdp.daemon.sources import resolve


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
            "poll_interval": GivenValue(f"poll-interval in {path}", 10),
            "log_format": GivenValue(f"log_format in {path}", "json"),
        },
        parameters={"count": GivenValue(f"set.count in {path}", 4)},
    )


def test_a_file_that_was_emptied_is_refused(tmp_path: Path) -> None:
    name, nothing = "c.yaml", "# nothing is set"
    with pytest.raises(
        ConfigurationError, match=re.escape(f"{name}: is empty; if it is to set nothing, write {nothing!r}")
    ):
        read(written(tmp_path, name, " \n"))
    assert read(written(tmp_path, name, nothing)) == ConfigFile()


ALIASES = "set:\n  a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
"""As is well known: some 400 bytes that become gigabytes where each value is written out."""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("c.yaml", "pol-interval: 1", "unknown key 'pol-interval'; did you mean 'poll-interval'?"),
        ("c.yaml", "1: 1", "unknown key '1'; known are "),
        ("c.ini", "", "'.ini' is no known suffix; name it .yaml, .json, or .toml"),
        (
            "c.yaml",
            "- a",
            "must be a mapping of option names to values, this is a list; for example 'poll-interval: 10'",
        ),
        ("c.yaml", "a: [", "is not valid YAML: while parsing a flow"),
        ("c.json", "{", "is not valid JSON: Expecting property name"),
        ("c.toml", "a = ", "is not valid TOML: Invalid value (at "),
        (
            "c.json",
            f"{'[' * 101}{']' * 101}",
            "is not valid JSON: it is nested too deeply",
        ),
        ("c.yaml", ALIASES, "is not valid YAML: an alias repeats another value"),
        ("c.yaml", "mode: dra\nmode: dra", "is not valid YAML: it has the key 'mode' twice"),
        ("c.json", '{"mode": "dra", "mode": "dra"}', "is not valid JSON: it has the key 'mode' twice"),
        ("c.yaml", "log-format: json\nlog_format: text", "'log_format' is there twice, with '-' and '_'; remove one"),
        ("c.toml", f"set = {'[' * 5000}{']' * 5000}", "is not valid TOML: it is nested too deeply"),
        ("c.toml", f"set = {{n = 0x1{'0' * 5000}}}", "is not valid TOML: it has a number with too many digits"),
        ("c.json", '{"set": {"n": NaN}}', "is not valid JSON: NaN is not a number in JSON"),
        (
            "c.yaml",
            "set: 3",
            "'set' must be a mapping of constructor parameters to values, this is an int; for example",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).startswith(f"configuration file {path}: {sentence}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["[Kx9", "Kx9: x", "'Kx9", "*Kx9", "!Kx9", "@Kx9", "{Kx9"])
def test_the_sentence_about_a_wrong_file_showed_the_line_with_the_secret(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not valid YAML: .* at line 2, column") as caught:
        read(written(tmp_path, "c.yaml", f"set:\n  token: {value}\nmode: dra\n"))
    assert "Kx9" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file or directory\)"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        read(binary)


@pytest.mark.parametrize("kind", ["device", "large"])
def test_what_is_no_file_for_people_is_refused_and_nobody_waits(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.yaml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigurationError, match=r"cannot be read \(it (is a|has more than 1048576 bytes)"):
        read(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("poll-interval: 1:30", "'1:30' must be a number of seconds above 0"),
        ("replicas: 0403", None),
        ("device-status: off", None),
    ],
)
def test_what_yaml_1_1_takes_for_something_else_is_what_was_written(
    tmp_path: Path, text: str, sentence: str | None
) -> None:
    """YAML 1.1 has 90 for ``1:30``, 259 for ``0403``, and false for ``off``."""
    path = written(tmp_path, "c.yaml", f"mode: dra\nnode-name: n\n{text}" if "status" in text else text)
    if sentence is None:
        settings = resolve([read(path).settings])
        assert settings.replicas == (403 if "replicas" in text else None)
        assert settings.device_status == (text.partition(": ")[2] if "status" in text else "off")
        return
    with pytest.raises(ConfigurationError, match=sentence):
        resolve([read(path).settings])


def test_null_was_the_default_where_none_is_a_value(tmp_path: Path) -> None:
    """``state-dir: null`` saved in /var/lib/kdp, and nobody said so."""
    found = read(written(tmp_path, "c.yaml", "state-dir: null\nsocket: null\npoll-interval: null\nhttp: null\n"))
    settings = resolve([found.settings])
    assert (settings.state_dir, settings.socket, settings.poll_interval) == (None, None, None)
    assert "http" not in found.settings  # where it is none, it is left out
