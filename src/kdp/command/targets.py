"""TARGET: find the vendor's class, and make an object of it with the parameters that were set.

Each thing that can be wrong has a sentence that says what was found and what is expected. A vendor's module that
fails while it is loaded is told with its file and line, not with a traceback: the sentence is for the admin too.
"""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import linecache
import logging
import os
import re
import stat
import sys
import types
import typing
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import attrs

from ..daemon.process import loading
from ..daemon.signals import Stopped
from ..errors import ConfigurationError, InvalidValueError, in_one_line, message_of
from ..hardware import Host
from ..model.backend import DeviceBackend
from ..model.devices import Version
from ..model.quantities import Quantity
from ..model.spelling import hint
from ..storage import forks
from .convert import ConversionError, convert, describe

if typing.TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from ..daemon.setting import GivenValue

logger = logging.getLogger(__name__)

ENTRY_POINTS = "kdp.backends"
"""The group in which an installed package names its backends."""

_EXPECTED = f"expected module:Class, path/file.py:Class or the name of an entry point in group {ENTRY_POINTS}"


def load(target: str) -> type[DeviceBackend]:
    """Return the class that a TARGET names.

    Raises:
        ConfigurationError: There is none, it cannot be loaded, or it is no complete backend.
    """
    place, colon, attribute = target.rpartition(":")
    token, process = loading.set(target), os.getpid()
    try:
        if not colon:
            return _check(target, _entry_point(target))
        if not place or not attribute:
            raise ConfigurationError(f"target {target!r}: one side of the colon is empty; {_EXPECTED}")
        module = _load_file(target, Path(place)) if is_file(target) else _load_module(target, place)
    finally:
        loading.reset(token)
        forks.end_child(f"the module of {target}", process)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            backends = ", ".join(_backends_in(module)) or "none"
            raise ConfigurationError(
                f"target {target!r}: {place} has no {attribute!r}; the backends in it: {backends}"
            ) from None
    return _check(target, found)


def is_file(target: str) -> bool:
    """Return whether a TARGET names a file, as ``path/file.py:Class``."""
    place = target.rpartition(":")[0]
    return place.endswith(".py") or "/" in place


def _check(target: str, found: Any) -> type[DeviceBackend]:
    if not isinstance(found, type) or not issubclass(found, DeviceBackend):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"an object of type {type(found).__name__}"
        raise ConfigurationError(f"target {target!r}: this is {what}; expected a subclass of kdp.DeviceBackend")
    missing: list[str] = sorted(getattr(found, "__abstractmethods__", ()))
    if "discover" in missing:
        raise ConfigurationError(
            f"target {target!r}: {found.__name__} has no discover(); expected is a method that returns the devices, "
            f"the one that every backend must have"
        )
    if missing:
        raise ConfigurationError(
            f"target {target!r}: {found.__name__} is abstract and lacks {', '.join(missing)}; expected a complete class"
        )
    return found


def _backends_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, held in vars(module).items()
        if isinstance(held, type) and issubclass(held, DeviceBackend) and held is not DeviceBackend
    ]


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of all installed backends by name, sorted."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)}


def _entry_point(target: str) -> Any:
    if target.endswith(".py") or "/" in target:
        raise ConfigurationError(f"target {target!r}: names no class; expected {target}:Class")
    points = installed()
    if target not in points:
        names = ", ".join(points) or "none"
        raise ConfigurationError(
            f"target {target!r}: no such entry point (installed in group {ENTRY_POINTS}: {names}); "
            f"{hint(target, points) or _EXPECTED}"
        )
    with _load_errors(target):
        return points[target].load()


def _load_module(target: str, name: str) -> ModuleType:
    # The console script does not look into the working directory; at the end of the path it shadows nothing.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with _load_errors(target):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                raise ConfigurationError(
                    f"target {target!r}: there is no module {error.name!r} (looked in the installed packages and in "
                    f"{Path.cwd()}); {_EXPECTED}"
                ) from None
            raise


def _load_file(target: str, path: Path) -> ModuleType:
    if (obstacle := _why_no_file(path)) is not None:
        raise ConfigurationError(f"target {target!r}: the file {path} {obstacle}; {_EXPECTED}")
    name = f"kdp_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"target {target!r}: {path} is no Python file; {_EXPECTED}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # attrs and dataclasses look a class's module up
    directory = str(path.parent.resolve())
    if directory not in sys.path:
        sys.path.append(directory)  # for modules beside it
    with _load_errors(target):
        spec.loader.exec_module(module)
    return module


def _why_no_file(path: Path) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if stat.S_ISREG(mode) else "is a directory" if stat.S_ISDIR(mode) else "is no regular file"


_PASSED_ON = (KeyboardInterrupt, Stopped)
"""What a person or a signal ended, and the vendor's code did not."""


@contextmanager
def _load_errors(target: str) -> Generator[None]:
    """Turn what the vendor's code raises while it is loaded into one sentence, also a module's ``sys.exit()``."""
    try:
        yield
    except (ConfigurationError, *_PASSED_ON):
        raise
    except BaseException as error:  # noqa: BLE001 - also that is told
        raise ConfigurationError(f"target {target!r}: loading it failed with {in_one_line(error)}") from None


@final
@attrs.frozen
class Recipe:
    """A class and the arguments for its constructor. Equal recipes make equal backends."""

    target: str
    cls: type[DeviceBackend]
    arguments: Mapping[str, Any]

    @property
    def takes_host(self) -> bool:
        """Whether the constructor is given the node's files."""
        return any(isinstance(value, Host) for value in self.arguments.values())

    def make(self) -> DeviceBackend:
        """Make the object.

        Raises:
            ConfigurationError: The constructor raised.
        """
        process = os.getpid()
        try:
            return self.cls(**self.arguments)
        except (ConfigurationError, InvalidValueError) as error:  # a sentence for the admin already
            raise ConfigurationError(f"target {self.target!r}: {self._without_secrets(message_of(error))}") from error
        except _PASSED_ON:
            raise
        except BaseException as error:
            from ..hardware.snapshot import tokens  # late: a start does not need it

            given = ", ".join(
                f"{name}={tokens.shown(name, value)}" for name, value in self.arguments.items() if name != "host"
            )
            why = self._without_secrets(in_one_line(error))
            raise ConfigurationError(
                f"target {self.target!r}: {self.cls.__name__}({given}) failed with {why}"
            ) from error
        finally:
            forks.end_child(f"the constructor of {self.cls.__name__}", process)

    def _without_secrets(self, why: str) -> str:
        """Return what the constructor raised, which may repeat the arguments."""
        from ..hardware.snapshot import tokens  # late: a start does not need it

        return tokens.hiding(why, self.arguments)


def addressed(name: str, targets: Iterable[str]) -> tuple[str | None, str]:
    """Return the target that ``TARGET.NAME`` is for, None without one, and the parameter's name alone."""
    target = max((each for each in targets if name.startswith(f"{each}.")), key=len, default=None)
    return target, name if target is None else name.removeprefix(f"{target}.")


def assign(
    targets: Mapping[str, type[DeviceBackend]], given: Mapping[str, GivenValue], *, host: Host
) -> tuple[Recipe, ...]:
    """Hand each value to every target that has such a parameter, converted by its annotation.

    One that is for a target by name goes there only, and before one that is for all.

    Args:
        targets: The classes by what they were named by.
        given: The values by the parameter's name, or by ``TARGET.NAME``; a name of an environment variable may differ
            in case.
        host: For parameters whose annotation is `kdp.hardware.Host`.

    Raises:
        ConfigurationError: A value has no taker or does not fit, or a target lacks one that it needs, or renames an
            option to one that it does not have.
    """
    for cls in targets.values():
        for old in cls.renamed_options:
            current(cls, old)
    parameters = {target: _parameters(cls) for target, cls in targets.items()}
    arguments: dict[str, dict[str, Any]] = {target: {} for target in targets}
    own: set[tuple[str, str]] = set()
    renamed: dict[tuple[str, str], str] = {}
    for name, value in sorted(given.items(), key=lambda item: addressed(item[0], targets)[0] is None):
        only, short = addressed(name, targets)
        candidates = targets if only is None else {only: targets[only]}
        takers = [
            (target, taken)
            for target, cls in candidates.items()
            if (taken := _named(current(cls, short), value, parameters[target])) is not None
        ]
        if not takers:
            sides = [f"{cls.__name__} has {', '.join(settable(cls)) or 'none'}" for cls in candidates.values()]
            raise ConfigurationError(
                f"{value.label}: there is no parameter {short!r}; {'; '.join(sides) or 'name the TARGET that has it'}"
            )
        for target, taken in takers:
            if (target, taken) in own:
                continue
            if only is not None:
                own.add((target, taken))
            if (before := renamed.setdefault((target, taken), short)).upper() != short.upper():
                raise ConfigurationError(
                    f"{value.label}: {before!r} and {short!r} are one parameter of {targets[target].__name__}, which "
                    f"is called {taken!r} now; leave the other one out"
                )
            if current(targets[target], short) != short:
                logger.warning("%s: the parameter is called %s now; rename it", value.label, taken)
            annotation = parameters[target][taken].annotation if taken in parameters[target] else str
            arguments[target][taken] = _converted(taken, value, annotation, targets[target].__name__)
    for target, known in parameters.items():
        arguments[target] |= {name: host for name, parameter in known.items() if _is_host(parameter.annotation)}
        _check_complete(target, targets[target], known, arguments[target])
    return tuple(Recipe(target, cls, arguments[target]) for target, cls in targets.items())


def current(cls: type[DeviceBackend], name: str) -> str:
    """Return the name that a parameter has now, or ``TARGET.NAME`` with it; ``KDP_SET_`` gives names in capitals.

    Raises:
        ConfigurationError: The class says that the parameter was renamed, and has none with the new name.
    """
    target, dot, short = name.rpartition(".")
    for old, new in cls.renamed_options.items():
        if short.upper() == old.upper():
            if new not in settable(cls):
                raise ConfigurationError(
                    f"{cls.__name__}.renamed_options: {old!r} is called {new!r} now, and the constructor has no such "
                    "parameter"
                )
            return f"{target}{dot}{new}"
    return name


def settable(cls: type[DeviceBackend]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor that ``--set`` takes, with annotations as types where possible."""
    return {name: parameter for name, parameter in _parameters(cls).items() if not _is_host(parameter.annotation)}


def lacking(known: Mapping[str, inspect.Parameter], given: Iterable[str]) -> list[inspect.Parameter]:
    """Return the parameters without a default that are not given."""
    needed = (each for each in known.values() if each.default is each.empty and each.kind is not each.VAR_KEYWORD)
    return [each for each in needed if each.name not in given]


def documented(cls: type) -> Mapping[str, str]:
    """Return what the ``Args:`` of the constructor's or the class's docstring say, by the parameter's name."""
    found: dict[str, str] = {}
    for text in (inspect.getdoc(cls) or "", inspect.getdoc(vars(cls).get("__init__")) or ""):
        _, _, arguments = text.partition("Args:\n")
        name, base = "", None
        for line in arguments.splitlines():
            indent = len(line) - len(line.lstrip())
            if not line.strip() or (base is not None and indent < base):
                break
            base = indent if base is None else base
            begins = re.match(r"\*{0,2}(\w+)(?: \(.*\))?: *(.*)", line.strip()) if indent == base else None
            if begins is not None:
                name = begins[1]
                found[name] = begins[2]
            elif name:
                found[name] += f" {line.strip()}"
    return {name: text.replace("``", "") for name, text in found.items()}


def _parameters(cls: type[DeviceBackend]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter.replace(annotation=_type_of(cls, parameter))
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }


def _type_of(cls: type[DeviceBackend], parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation as a type; without one the type of the default, if that says anything."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return _kind_of(parameter.default)
    if not isinstance(annotation, str):
        return annotation
    init: Any = cls.__init__
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    for names in (lambda: init.__globals__, lambda: _names_for_checkers(init)):
        try:
            return typing.get_type_hints(holder, globalns=names(), include_extras=True)["it"]
        except Exception:  # noqa: BLE001, S112 - imported for type checkers only, or no type at all
            continue
    return typing.ForwardRef(annotation)


def _kind_of(default: object) -> Any:
    kind = type(default)
    if kind in (bool, int, float, str, timedelta, Quantity, Version) or isinstance(default, (Path, enum.Enum)):
        return kind
    if isinstance(default, (list, tuple)):
        kinds = {_kind_of(each) for each in typing.cast("typing.Sequence[object]", default)}
        element = kinds.pop() if len(kinds) == 1 else str
        return tuple[element, ...] if isinstance(default, tuple) else list[element]  # type: ignore[valid-type]
    return inspect.Parameter.empty


def _names_for_checkers(init: Any) -> dict[str, Any]:
    """Return a function's global names, and those that its module imports under ``if TYPE_CHECKING`` only.

    Linters move an import there that only annotations use.
    """
    names = dict(init.__globals__)
    file = init.__code__.co_filename
    for node in ast.parse("".join(linecache.getlines(file))).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            imports: list[ast.stmt] = [each for each in node.body if isinstance(each, (ast.Import, ast.ImportFrom))]
            exec(compile(ast.Module(imports, []), file, "exec"), names)  # noqa: S102 - the vendor's own imports
    return names


def _named(name: str, given: GivenValue, known: Mapping[str, inspect.Parameter]) -> str | None:
    settable = {key: held for key, held in known.items() if not _is_host(held.annotation)}
    for key, parameter in settable.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return name
        if key == name or (given.label.startswith("KDP_") and key.upper() == name.upper()):
            return key
    return None


def _converted(name: str, given: GivenValue, annotation: Any, owner: str) -> Any:
    if isinstance(annotation, typing.ForwardRef):
        raise ConfigurationError(
            f"{given.label}: the annotation {annotation.__forward_arg__!r} of this parameter of {owner} cannot be "
            "resolved; expected a type that the module imports"
        )
    try:
        return convert(given.value, annotation)
    except ConversionError as error:
        raise given.refused(name, f"does not fit; {owner} expects {error}") from None


def _is_host(annotation: Any) -> bool:
    return annotation is Host or Host in typing.get_args(annotation)


def _check_complete(
    target: str, cls: type[DeviceBackend], known: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]
) -> None:
    if missing := lacking(known, arguments):
        first = missing[0]
        if isinstance(first.annotation, typing.ForwardRef):
            raise ConfigurationError(
                f"target {target!r}: the annotation {first.annotation.__forward_arg__!r} of the parameter "
                f"{first.name!r} of {cls.__name__} cannot be resolved; import its type, for example "
                "from kdp.hardware import Host"
            )
        kind = "a value" if first.annotation is first.empty else describe(first.annotation)
        names = ", ".join(repr(parameter.name) for parameter in missing)
        raise ConfigurationError(
            f"target {target!r}: {cls.__name__} needs the parameter{'s' if len(missing) > 1 else ''} {names}; expected "
            f"--set {first.name}=VALUE with {kind}"
        )
