"""Where settings come from: keyword arguments, variables, flags and files, as layers of which the strongest wins.

Precedence: keyword or flag, then environment, then file, then default. An empty environment variable counts as not set,
because templates (Helm, envsubst) leave such ones behind.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError
from ..model.spelling import slips_in_variables
from .setting import GivenValue
from .settings import SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


logger = logging.getLogger(__name__)

VARIABLES: Final = frozenset(
    [
        *(setting.variable for setting in SETTINGS.values()),
        "KDP_CONFIG",
        "KDP_FORMAT",
        "KDP_PARENT_PID",
        "KDP_STRICT_CONFIG",
        "KDP_TARGET",
    ]
)
"""The environment variables that kdp reads, but for ``KDP_SET_*``."""


def from_keywords(options: Mapping[str, object], *, function: str) -> dict[str, GivenValue]:
    """Return the keyword arguments of `kdp.run` or `kdp.serve` as a layer for `resolve`.

    Raises:
        ConfigurationError: There is no such option.
    """
    known = [name for name, setting in SETTINGS.items() if function == "kdp.run" or not setting.of_process]
    for name in options:
        if name not in known:
            raise ConfigurationError(f"{function} has no option {name!r}; it has {', '.join(known)}")
    return {
        name: GivenValue(f"{function}({name}=...)", value)
        for name, value in options.items()
        if value is not None or SETTINGS[name].takes_none
    }


def from_environment(environ: Mapping[str, str]) -> dict[str, GivenValue]:
    """Return the variables ``KDP_*`` that are set and not empty as a layer for `resolve`."""
    return {
        setting.name: GivenValue(setting.variable, environ[setting.variable])
        for setting in SETTINGS.values()
        if environ.get(setting.variable)
    }


def warn_of_slips(environ: Mapping[str, str]) -> None:
    """Log a warning for each variable that is almost one of kdp's."""
    for slip in slips_in_variables(environ, VARIABLES):
        logger.warning("%s", slip)


def resolve(
    layers: Sequence[Mapping[str, GivenValue]], *, checks_needs: bool = True, used: Collection[str] = ()
) -> Settings:
    """Make the settings of these layers, the strongest first.

    A value that a stronger layer hides is not looked at.

    Args:
        layers: What was given, by setting.
        checks_needs: Whether a setting is refused that has no effect, because another one is missing.
        used: Settings that have an effect in any case, because the caller uses them itself.

    Raises:
        ConfigurationError: A value breaks its setting's rule, or two contradict each other.
    """
    found: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for layer in layers:
        for name, given in layer.items():
            if name not in found:
                found[name] = SETTINGS[name].read(given)
                labels[name] = given.label
    if "snapshot" in found and "host_root" in found:
        raise ConfigurationError(
            f"{labels['snapshot']} and {labels['host_root']} are two answers to where the node's files are; give one"
        )
    settings = Settings(**found)
    for setting in SETTINGS.values():
        if setting.name in labels and getattr(settings, setting.name) != setting.default:
            setting.check_mode(settings.mode, labels[setting.name], SETTINGS["mode"].flag)
            if checks_needs and setting.need is not None and setting.name not in used:
                setting.need.check(settings, labels[setting.name])
    _check_mode_needs(settings)
    return settings


def resolve_some(layers: Sequence[Mapping[str, GivenValue]], names: Collection[str]) -> Settings:
    """Make the settings that have these names, and the defaults of the others: for a command that needs no more.

    What the process would refuse as a contradiction is not refused.

    Raises:
        ConfigurationError: A value breaks its setting's rule.
    """
    merged = {name: given for layer in reversed(layers) for name, given in layer.items() if name in names}
    found: dict[str, Any] = {name: SETTINGS[name].read(given) for name, given in merged.items()}
    return Settings(**found)


def _check_mode_needs(settings: Settings) -> None:
    """Refuse settings that leave out what their mode needs."""
    if settings.mode == "dra-controller" and settings.pool is None:
        raise ConfigurationError(
            f"{SETTINGS['mode'].flag} dra-controller needs the pool's name; give one, as {SETTINGS['pool'].flag} fabric"
        )
    asks = settings.mode == "dra" or (settings.mode == "device-plugin" and settings.asks_cluster)
    if asks and settings.node_name is None:
        what = f"{SETTINGS['mode'].flag} dra" if settings.mode == "dra" else asking(settings)
        raise ConfigurationError(
            f"{what} needs the node's name, as the API server has it; give {SETTINGS['node_name'].flag}, or in a pod "
            f"{SETTINGS['node_name'].variable} from the field spec.nodeName"
        )


def asking(settings: Settings) -> str:
    """Return the setting for which a device plugin asks the API server."""
    if settings.events == "on":
        return f"{SETTINGS['events'].flag} on"
    if settings.on_unhealthy == "evict":
        return f"{SETTINGS['on_unhealthy'].flag} evict"
    return f"{SETTINGS['startup_taint'].flag} {settings.startup_taint}"
