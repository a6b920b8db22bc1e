"""A command line, the environment and a configuration file put together: settings and backends.

Precedence: flags, then environment, then file. It can be put together again (SIGHUP), with the file read anew.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, final

import attrs

from ..daemon.plan import ServingPlan, check_backends, host_of
from ..daemon.setting import GivenValue
from ..daemon.settings import SETTINGS, Settings
from ..daemon.sources import from_environment, resolve
from ..errors import ConfigurationError, InvalidValueError
from ..hardware import Host
from ..model.backend import DeviceBackend
from ..model.needs import Needs
from ..supervision.backend_validation import agreed_host
from .config import ConfigFile, as_text
from .config import read as read_config
from .targets import Recipe, addressed, assign, current, is_file, load

_SET_VARIABLE = "KDP_SET_"


@final
@attrs.define(kw_only=True)
class Invocation:
    """What a command was called with.

    Attributes:
        flags: The settings' flags by name; None: not given.
        checks_needs: Whether a setting is refused that has no effect in a process that serves.
        used: Settings that have an effect in any case, because the command uses them itself.
        serves: Whether the command serves the devices, and does not only look at them.
        wrap: Makes what the backends are given of the node's files, as one that records.
    """

    targets: Sequence[str]
    assignments: Sequence[str]
    config: Path | None
    flags: Mapping[str, str | None]
    checks_needs: bool = True
    used: Collection[str] = ()
    serves: bool = False
    wrap: Callable[[Host], Host] = lambda host: host
    _classes: dict[str, type[DeviceBackend]] = attrs.field(init=False, factory=dict[str, type[DeviceBackend]])
    _recipes: tuple[Recipe, ...] = attrs.field(default=(), init=False)
    _backends: tuple[DeviceBackend, ...] = attrs.field(default=(), init=False)
    _host: tuple[object, Host] | None = attrs.field(default=None, init=False)

    def plan(self, text: str | None = None) -> ServingPlan:
        """Return what is to be served; the same backends as last time if nothing about them has changed.

        Args:
            text: What counts as the text of the configuration file; None: what it holds now.

        Raises:
            ConfigurationError: Something that was given is wrong.
        """
        _check_distinct(self.targets)
        file = read_config(self.config, text)
        settings = self._settings(file)
        host = self._host_for(settings)
        made = self._made(host, file)
        if settings.snapshot is not None:
            self._check_hosts()
        return ServingPlan(made, settings, host, file.text, serves=self.serves)

    def settings(self) -> Settings:
        """Return the settings alone, where no target is needed.

        Raises:
            ConfigurationError: Something that was given is wrong.
        """
        return self._settings(read_config(self.config))

    def given(self, name: str) -> str | None:
        """Return what a flag or a variable says of a setting, as text; None: neither does."""
        return self.flags.get(name) or os.environ.get(SETTINGS[name].variable) or None

    def passed_on(self, *, with_file: bool) -> dict[str, str]:
        """Return the settings that another process is to have, by name, as texts that flags and variables take.

        Args:
            with_file: Whether the configuration file counts: the other process does not read it.
        """
        file: Mapping[str, GivenValue] = read_config(self.config).settings if with_file else {}
        found: dict[str, str] = {}
        for name, setting in SETTINGS.items():
            text = None if setting.of_place else self.given(name)  # a flag may be about this machine
            if text is None and name in file:
                text = as_text(file[name].value)
            if text is not None:
                found[name] = text
        return found

    def _settings(self, file: ConfigFile) -> Settings:
        flags = {name: GivenValue(SETTINGS[name].flag, text) for name, text in self.flags.items() if text is not None}
        layers = [flags, from_environment(os.environ), file.settings]
        return resolve(layers, checks_needs=self.checks_needs, used=self.used)

    def _check_hosts(self) -> None:
        """Refuse a snapshot for a class that would look at this machine all the same."""
        for recipe in self._recipes:
            if not recipe.takes_host:
                raise ConfigurationError(
                    f"--snapshot: {recipe.cls.__name__} has no parameter of type kdp.hardware.Host, so it would read "
                    "this machine's files; give its constructor 'host: kdp.hardware.Host', or leave --snapshot out"
                )

    @property
    def takes_host(self) -> bool:
        """Whether a backend was given the node's files; after `plan`."""
        return any(recipe.takes_host for recipe in self._recipes)

    @property
    def recipe(self) -> Recipe:
        """The class and its constructor's arguments; after `plan`, with one target."""
        (recipe,) = self._recipes
        return recipe

    def parameters(self) -> list[tuple[str, tuple[str, ...], object]]:
        """Return the constructor's parameters from flags or variables, and the files named in the configuration.

        After `plan`, with one target. Each is a name, texts, and the value they became.
        """
        recipe = self.recipe
        found: list[tuple[str, tuple[str, ...], object]] = []
        stronger = _given(self.assignments, self._classes)
        for name, given in _merged(read_config(self.config).parameters, stronger, self._classes).items():
            short = current(recipe.cls, addressed(name, self.targets)[1])
            taken = next(key for key in recipe.arguments if key == short or key.upper() == short.upper())
            made = recipe.arguments[taken]
            if name not in stronger and not (isinstance(made, Path) and os.path.isfile(made)):
                continue
            value = given.value
            texts = cast("list[object]", value) if isinstance(value, list) else [value]
            found.append((taken, tuple(map(str, texts)), made))
        return found

    def _host_for(self, settings: Settings) -> Host:
        """Return the node's files, the same as last time if the settings are: a snapshot is unpacked once."""
        key = (settings.host_root, settings.snapshot)
        if self._host is None or self._host[0] != key:
            self._host = (key, self.wrap(host_of(settings) or Host()))
        return self._host[1]

    def _made(self, host: Host, file: ConfigFile) -> tuple[DeviceBackend, ...]:
        # Without a target there is nothing that a variable could be meant for; what is meant for nothing is an error in
        # a flag.
        for target in self.targets:
            if target not in self._classes:
                self._classes[target] = load(target)
        stronger = _given(self.assignments, self._classes) if self.targets else _from_flags(self.assignments)
        given = _merged(file.parameters, stronger, self._classes)
        recipes = assign(self._classes, given, host=host)
        if recipes != self._recipes:
            self._backends = check_backends([recipe.make() for recipe in recipes])
            agreed_host(self._backends, host)
            self._recipes = recipes
        return self._backends


def needs_of(backend: DeviceBackend) -> Needs:
    """Return what a backend's hook ``needs`` says.

    Raises:
        ConfigurationError: It raised something, or returned something else.
    """
    import anyio

    label = type(backend).__name__

    async def call_needs() -> Needs:
        answer = backend.needs()
        return await answer if inspect.isawaitable(answer) else answer

    try:
        needs: Any = anyio.run(call_needs)
    except InvalidValueError as error:
        raise ConfigurationError(f"{label}.needs: {error}") from error
    except Exception as error:
        raise ConfigurationError(
            f"{label}.needs raised {type(error).__name__}: {error}; expected a kdp.Needs"
        ) from error
    if not isinstance(needs, Needs):
        raise ConfigurationError(f"{label}.needs returned {needs!r}; expected a kdp.Needs")
    return needs


def _check_distinct(targets: Sequence[str]) -> None:
    """Refuse a target that is there twice, also if the paths of its file are written differently."""
    places: dict[tuple[str, str], str] = {}
    for target in targets:
        place, _, attribute = target.rpartition(":")
        earlier = places.setdefault((os.path.realpath(place) if is_file(target) else place, attribute), target)
        if earlier is not target or list(targets).count(target) > 1:
            raise ConfigurationError(f"target {target!r} was given twice; name each target once")


def _merged(
    weaker: Mapping[str, GivenValue], stronger: Mapping[str, GivenValue], classes: Mapping[str, type[DeviceBackend]]
) -> dict[str, GivenValue]:
    """Return the values of both; for one parameter, whatever its case and whether by its old name, the stronger one."""
    hidden = {name for each in stronger for name in _names(each, classes)}
    return {name: value for name, value in weaker.items() if hidden.isdisjoint(_names(name, classes))} | {**stronger}


def _names(name: str, classes: Mapping[str, type[DeviceBackend]]) -> set[str]:
    """Return the current names of a parameter in capitals, as variables have them."""
    return {current(cls, name).upper() for cls in classes.values()} or {name.upper()}


def _given(assignments: Sequence[str], classes: Mapping[str, type[DeviceBackend]]) -> dict[str, GivenValue]:
    """Return the values of flags and variables, by the parameter's name."""
    return _merged(_from_environment(os.environ), _from_flags(assignments), classes)


def _from_flags(assignments: Sequence[str]) -> dict[str, GivenValue]:
    texts: dict[str, list[str]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            from ..hardware.snapshot import tokens  # only after a fault

            raise ConfigurationError(
                f"--set: {tokens.shown('', assignment)} must be NAME=VALUE; for example --set count=4"
            )
        texts.setdefault(name, []).append(text)
    return {name: GivenValue(f"--set {name}", held[0] if len(held) == 1 else held) for name, held in texts.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, GivenValue]:
    return {
        variable.removeprefix(_SET_VARIABLE): GivenValue(variable, text)
        for variable, text in environ.items()
        if variable.startswith(_SET_VARIABLE) and text
    }
