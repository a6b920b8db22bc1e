"""``--config FILE``: the same options, in YAML, JSON or TOML.

The keys are the options' names without the dashes in front (``poll-interval``; ``poll_interval`` will do), and ``set``:
a mapping of constructor parameters, where numbers, lists and mappings need no text form. An unknown key is refused, so
that a typo is no silent default.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast, final

import attrs

from ..daemon.setting import Given
from ..daemon.settings import SETTINGS
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

MAX_DEPTH = 100
"""The deepest nesting of a configuration file: more than any option needs, less than any parser's own limit."""


@final
@attrs.frozen
class ConfigFile:
    """What a file says: settings and parameters of the constructor by name."""

    settings: Mapping[str, Given] = attrs.field(factory=dict[str, Given])
    parameters: Mapping[str, Given] = attrs.field(factory=dict[str, Given])


def read(path: Path | None) -> ConfigFile:
    """Read a configuration file; None: there is none.

    Raises:
        ConfigurationError: It cannot be read, or holds something that is no option.
    """
    if path is None:
        return ConfigFile()
    content = _parse(path)
    if content is None:  # an empty file
        return ConfigFile()
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"configuration file {path}: must be a mapping of option names to values, this is a "
            f"{type(content).__name__}; valid is 'poll-interval: 10'"
        )
    settings: dict[str, Given] = {}
    parameters: dict[str, Given] = {}
    for key, value in cast("dict[object, object]", content).items():
        name = str(key).replace("-", "_")
        if key == "set":
            parameters = _parameters(path, value)
        elif name not in SETTINGS:
            raise ConfigurationError(_unknown(path, str(key)))
        elif value is not None or name == "poll_interval":
            settings[name] = Given(f"{key} in {path}", value)
    return ConfigFile(settings, parameters)


def _parameters(path: Path, value: object) -> dict[str, Given]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"configuration file {path}: 'set' must be a mapping of constructor parameters to values, this is a "
            f"{type(value).__name__}; valid is 'set: {{count: 4}}'"
        )
    return {
        str(name): Given(f"set.{name} in {path}", held) for name, held in cast("dict[object, object]", value).items()
    }


def _unknown(path: Path, key: str) -> str:
    known = [*(setting.key for setting in SETTINGS.values()), "set"]
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"configuration file {path}: unknown key {key!r}; {hint}"


def _parse(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"configuration file {path}: is not UTF-8 text") from error
    kind = {".json": "JSON", ".toml": "TOML"}.get(path.suffix.lower(), "YAML")
    try:
        value = _PARSERS[kind](text)
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigurationError(f"configuration file {path}: is not valid {kind}: {reason}") from None
    return value


def _check_depth(value: object) -> None:
    """Raise RecursionError beyond `MAX_DEPTH` levels; each version of Python has another limit of its own."""
    level = {id(value): value}
    for _ in range(MAX_DEPTH):
        # By identity: with aliases, a short YAML text names one list any number of times, or inside itself.
        level = {id(held): held for each in level.values() for held in _held(each)}
    if level:
        raise RecursionError


def _held(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return cast("dict[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _json(text: str) -> object:
    import json

    return json.loads(text)


def _toml(text: str) -> object:
    import tomllib

    return tomllib.loads(text)


def _yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except IndexError:  # PyYAML's, of a number without digits
        raise ValueError("there is an empty number") from None


_PARSERS = {"JSON": _json, "TOML": _toml, "YAML": _yaml}
