"""`Setting`: one setting's name in every source, its rule and help, and the modes that it applies to.

Rule: a wrong value is refused with the name under which it was given (``KDP_POLL_INTERVAL``, ``--poll-interval``), the
value, the rule and a valid example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

import attrs

from ..errors import ConfigurationError
from ..startup import shown
from . import parsers

if TYPE_CHECKING:
    from attrs import AttrsInstance

Mode = Literal["device-plugin", "dra", "dra-controller"]

_ALL: Final[tuple[Mode, ...]] = get_args(Mode)
ON_NODE: Final[tuple[Mode, ...]] = ("device-plugin", "dra")
PLUGIN: Final[tuple[Mode, ...]] = ("device-plugin",)
DRA: Final[tuple[Mode, ...]] = ("dra", "dra-controller")
NODE_DRIVER: Final[tuple[Mode, ...]] = ("dra",)
CONTROLLER: Final[tuple[Mode, ...]] = ("dra-controller",)


@final
@attrs.frozen
class GivenValue:
    """A value for a setting, and what its giver calls it.

    Attributes:
        label: The name for messages: ``--http``, ``KDP_HTTP``, ``http in /etc/kdp.yaml``.
        value: What was given: text, or a value of the right type.
    """

    __repr__ = shown

    label: str
    value: object

    def refused(self, name: str, why: str) -> ConfigurationError:
        """Return the error that this value is refused. It shows no secret.

        Args:
            name: The setting or the parameter, which decides whether the value is a secret.
            why: The rule that the value breaks, and what to do.
        """
        from ..hardware.snapshot import tokens  # late: a start does not need it

        text = f"{self.label}: {tokens.shown(name, self.value)} {tokens.hiding(why, {name: self.value})}"
        return ConfigurationError(text)


@final
@attrs.frozen
class Need:
    """What must hold, so that a setting has an effect.

    Attributes:
        is_met: Tells from all settings whether it holds.
        lacking: What is missing if not, as the beginning of a sentence.
        remedy: What gives it, with an example.
    """

    __repr__ = shown

    is_met: Callable[[Any], bool]
    lacking: str
    remedy: str

    def check(self, settings: object, label: str) -> None:
        """Refuse a setting that was given under this name and has no effect.

        Raises:
            ConfigurationError: The need is not met.
        """
        if not self.is_met(settings):
            raise ConfigurationError(f"{label}: {self.lacking}, so it has no effect; {self.remedy}, or leave it out")


@final
@attrs.frozen(kw_only=True)
class Setting:
    """One setting, as the sources and the documentation see it.

    Attributes:
        name: As keyword argument and, with dashes, as flag and key of a file.
        default: The value when no source gives one.
        parse: Turns text or a value into what `Settings` holds.
        help: What it does, and its default if that is not a plain value.
        metavar: What stands for the value in ``--help``.
        modes: In which modes it does something; in another one it is refused.
        of_process: Whether it concerns the process and not what is served, as the logs do: it can change meanwhile.
        of_place: Whether it is about where this process runs, so that no manifest passes it on.
        takes_none: Whether None, or null in a file, is a value, and not the same as leaving it out.
        need: What must hold, so that it has an effect; without it, it is refused. None: it needs nothing.
    """

    __repr__ = shown

    name: str
    default: object
    parse: Callable[[object], object]
    help: str
    metavar: str
    modes: tuple[Mode, ...] = _ALL
    of_process: bool = False
    of_place: bool = False
    takes_none: bool = False
    need: Need | None = None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"KDP_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command's flag."""
        return f"--{self.key}"

    @property
    def key(self) -> str:
        """The configuration file's key."""
        return self.name.replace("_", "-")

    @property
    def shown_default(self) -> str | None:
        """The default for people; None: the help says it."""
        return None if self.default in (None, ..., ()) else str(self.default)

    def read(self, given: GivenValue) -> object:
        """Return the value that was given, checked.

        Raises:
            ConfigurationError: It breaks the rule.
        """
        try:
            return self.parse(given.value)
        except parsers.Unacceptable as error:
            raise given.refused(self.name, str(error)) from None

    def check_mode(self, mode: Mode, label: str, mode_flag: str) -> None:
        """Refuse a setting of another mode: it would do nothing, and nobody would say so."""
        if mode in self.modes:
            return
        hint = ""
        if mode == "device-plugin":
            only, hint = "a DRA driver", f", or say {mode_flag} dra"
        elif self.modes == ON_NODE:
            only, hint = "what serves a node's devices", f", or say {mode_flag} device-plugin or dra"
        elif self.modes == PLUGIN:
            only, hint = "a device plugin", f", or say {mode_flag} device-plugin"
        else:
            only = "a node's driver" if mode == "dra-controller" else "a pool's controller"
        raise ConfigurationError(f"{label}: only {only} has it, and the mode is {mode}; leave it out{hint}")


def setting(
    default: object, parse: Callable[[object], object], help: str, metavar: str | None = None, **more: Any
) -> Any:
    """Return a field of `Settings`; the arguments are those of `Setting`. A choice needs no metavar."""
    if metavar is None:
        assert isinstance(parse, parsers.OneOf)
        metavar = "|".join(parse.words)
    make = functools.partial(Setting, parse=parse, help=help, metavar=metavar, **more)
    return attrs.field(default=default, metadata={"setting": make})


def settings_of(cls: type[AttrsInstance]) -> Mapping[str, Setting]:
    """Return the settings of a class whose fields `setting` made, by name."""
    return {each.name: each.metadata["setting"](name=each.name, default=each.default) for each in attrs.fields(cls)}
