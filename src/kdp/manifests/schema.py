"""The settings as a JSON schema: what a chart's values may say of them.

The schema is narrower than the settings' own readers where a reader takes several forms: a chart has one form for each
setting. What it lets pass, the process still checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..daemon import parsers
from ..daemon.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..daemon.setting import Mode, Setting

Schema = dict[str, Any]

FIXED: Final = ("mode", "driver_name", "pool", "device_status", "events", "on_unhealthy", "startup_taint")
"""Settings that decide which objects there are; another value takes another chart."""

_PATH: Final[Schema] = {"type": "string", "pattern": "^/"}

_OF_PARSER: Final[dict[Callable[[object], object], Schema]] = {
    parsers.path: _PATH,
    parsers.path_or_none: {"type": "string", "pattern": "^(/.*|none)$"},
    parsers.poll_interval: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "none"}]},
    parsers.address: {"type": "string", "pattern": r"^[^ ]*:[1-9][0-9]{0,4}$"},
    parsers.taint: {"enum": ["NoSchedule", "NoExecute", "None", "off"]},
}


def offered(mode: Mode) -> list[Setting]:
    """Return the settings that a chart for this mode offers, in the order of ``--help``."""
    return [
        setting
        for setting in SETTINGS.values()
        if mode in setting.modes and not setting.of_place and setting.name not in FIXED
    ]


def setting_schema(setting: Setting) -> Schema:
    """Return the schema of a setting's value."""
    parse: Any = setting.parse
    if isinstance(parse, parsers.OneOf):
        made: Schema = {"enum": list(parse.words)}
        if "off" in parse.words:  # which Helm's YAML reader takes for a bool, unless it is quoted
            made["enum"] += [True, False] if "on" in parse.words else [False]
    elif isinstance(parse, parsers.Number):
        made = {"type": "integer", "minimum": parse.least}
        if parse.most is not None:
            made["maximum"] = parse.most
    else:
        made = _OF_PARSER.get(parse, {"type": "string", "minLength": 1})
    if setting.name == "http":
        return {"description": "Where the probes are answered, as :9400. Default: a port of the chart's.", **made}
    default = "" if setting.shown_default is None else f" Default: {setting.shown_default}."
    return {"description": f"{setting.help.rstrip('.')}.{default}", **made}
