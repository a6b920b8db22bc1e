"""``--config FILE``: the same options, in YAML, JSON or TOML.

The keys are the options' names without the dashes in front (``poll-interval``; ``poll_interval`` will do), and ``set``:
a mapping of constructor parameters, where numbers, lists and mappings need no text form. An unknown key is an
error, so that a typo is no silent default. A key that is there twice is one, too, and so is a text that YAML's readers
understand in different ways (`kdp.command.yaml_reading`). A file has 1 MiB at most, as a ConfigMap has. It may be a
pipe (`kdp.storage.reading`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast, final

import attrs

from ..daemon.setting import GivenValue
from ..daemon.settings import SETTINGS
from ..errors import ConfigurationError, kind_of
from ..model.spelling import hint
from ..storage.documents import parse_json, parse_toml
from ..storage.reading import is_pipe, read_text

if TYPE_CHECKING:
    from pathlib import Path


@final
@attrs.frozen
class ConfigFile:
    """What a file says: settings and parameters of the constructor by name, and its text; None: there is no file."""

    settings: Mapping[str, GivenValue] = attrs.field(factory=dict[str, GivenValue])
    parameters: Mapping[str, GivenValue] = attrs.field(factory=dict[str, GivenValue])
    text: str | None = attrs.field(default=None, eq=False, repr=False)


def read(path: Path | None, text: str | None = None) -> ConfigFile:
    """Read a configuration file; None: there is none. A ``text`` counts as what the file holds.

    Raises:
        ConfigurationError: It cannot be read, or holds something that is no option.
    """
    if path is None:
        return ConfigFile()
    if text is None:
        text = text_of(path)
    content = _parse(path, text)
    if content is None:  # comments only
        return ConfigFile(text=text)
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"configuration file {path}: must be a mapping of option names to values, this is "
            f"{kind_of(content)}; for example 'poll-interval: 10'"
        )
    settings: dict[str, GivenValue] = {}
    parameters: dict[str, GivenValue] = {}
    for key, value in cast("dict[object, object]", content).items():
        name = str(key).replace("-", "_")
        if name in settings:
            raise ConfigurationError(f"configuration file {path}: {key!r} is there twice, with '-' and '_'; remove one")
        if key == "set":
            parameters = _parameters(path, value)
        elif name not in SETTINGS:
            raise ConfigurationError(_unknown(path, str(key)))
        elif value is not None or SETTINGS[name].takes_none:
            settings[name] = GivenValue(f"{key} in {path}", value)
    return ConfigFile(settings, parameters, text)


def _parameters(path: Path, value: object) -> dict[str, GivenValue]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"configuration file {path}: 'set' must be a mapping of constructor parameters to values, this is "
            f"{kind_of(value)}; for example 'set: {{count: 4}}'"
        )
    return {
        str(name): GivenValue(f"set.{name} in {path}", held)
        for name, held in cast("dict[object, object]", value).items()
    }


def _unknown(path: Path, key: str) -> str:
    known = [*(setting.key for setting in SETTINGS.values()), "set"]
    near = hint(key.replace("_", "-"), known) or f"known are {', '.join(known)}"
    return f"configuration file {path}: unknown key {key!r}; {near}"


def text_of(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise ConfigurationError(
            f"configuration file {path}: cannot be read ({error.strerror}); name another file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"configuration file {path}: is not UTF-8 text") from error


def as_text(value: object) -> str:
    """Return a setting's value as a flag has it: of a mapping, pairs with commas between them."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return ",".join(f"{key}={as_text(each)}" for key, each in pairs.items())
    return "none" if value is None else str(value)


def seen_in(path: Path, name: str) -> list[str]:
    """Return what a file seems to give for a setting, although it may be no YAML, JSON, or TOML any more."""
    words = name.replace("_", "[-_]")
    line = rf"""^[\s{{,]*["']?{words}["']?\s*[:=]\s*["']?([^\s"'#,}}]+)"""
    try:
        return [] if is_pipe(path) else re.findall(line, text_of(path), re.MULTILINE)
    except ConfigurationError:
        return []


def _parse(path: Path, text: str) -> object:
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigurationError(
            f"configuration file {path}: {path.suffix!r} is no known suffix; name it .yaml, .json, or .toml"
        )
    if not text.strip():  # as an editor or a full disk leaves it
        nothing = "{}" if kind == "JSON" else "# nothing is set"
        raise ConfigurationError(
            f"configuration file {path}: is empty; if it is to set nothing, write {nothing!r} there"
        )
    try:
        return _PARSERS[kind](text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"configuration file {path}: is not valid {kind}: {reason}") from None


_KINDS: Final = {"": "YAML", ".conf": "YAML", ".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML"}
"""The format of each suffix. A file without a suffix, such as a mounted key, is YAML."""


def parse_yaml(text: str) -> object:
    """Return the value of a YAML text; the library is loaded only then."""
    from . import yaml_reading

    return yaml_reading.parse_yaml(text)


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {"JSON": parse_json, "TOML": parse_toml, "YAML": parse_yaml}
