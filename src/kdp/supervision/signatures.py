"""Checks how a backend's hooks can be called: the start reports what would otherwise fail for the first pod, or never.

A hook's own signature counts, and not that of what a decorator wraps, because the decorator is what is called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigurationError, kind_of
from ..model.backend import OPTIONAL_HOOKS, DeviceBackend, WrappedBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def check_signatures(backend: DeviceBackend) -> None:
    """Check that each hook of a backend is a method that takes what kdp calls it with, and whose body runs then.

    Raises:
        ConfigurationError: One is not.
    """
    if isinstance(backend, WrappedBackend):
        check_signatures(backend.inner)
        return
    for hook in ("discover", *sorted(OPTIONAL_HOOKS)):
        found = _written(backend, hook)
        if found is None:
            continue
        function, has_self = found
        _check_kind(f"{type(backend).__name__}.{hook}", hook, function)
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):  # a function in C, which does not tell
            continue
        expected = inspect.signature(getattr(DeviceBackend, hook))
        names = list(expected.parameters)
        try:
            signature.bind(*names if has_self else names[1:])
        except TypeError:
            call = f"{hook}({', '.join(names[1:])})"
            plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
            written = str(signature.replace(parameters=plain, return_annotation=signature.empty))
            raise ConfigurationError(
                f"{type(backend).__name__}.{hook}{written}: kdp calls {call}, which this hook does not take; "
                f"expected def {hook}({', '.join(names)})"
            ) from None


def _check_kind(name: str, hook: str, function: Callable[..., Any]) -> None:
    """Refuse a generator: a call of it runs nothing of its body."""
    written = inspect.unwrap(function)
    code = getattr(written, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    if getattr(getattr(function, "__code__", None), "co_filename", "") == contextlib.__file__:
        raise ConfigurationError(f"{name}{place}: is a context manager, so its body would never run; {_INSTEAD[hook]}")
    if inspect.isasyncgenfunction(function) or (hook != "discover" and inspect.isgeneratorfunction(function)):
        raise ConfigurationError(f"{name}{place}: has a yield, so its body would never run; {_INSTEAD[hook]}")


_RETURN = "return the whole result"
_INSTEAD = {
    **dict.fromkeys(OPTIONAL_HOOKS, _RETURN),
    "discover": "return a list",
    "open": "acquire in open(), keep it on self, and release it in close()",
    "close": "release in close() what open() has acquired",
    "watch": "call report.fault(), report.clear(), or report.rescan() there instead",
    "prepare_container": "prepare the devices and return",
    "released": "clean up and return",
}
"""What to write instead of a ``yield``."""


def _written(backend: DeviceBackend, hook: str) -> tuple[Callable[..., Any], bool] | None:
    """Return the vendor's function for a hook, and whether it takes ``self``; None: there is none that can be judged.

    No property is read, because that would run the vendor's code.

    Raises:
        ConfigurationError: It is no method.
    """
    found = inspect.getattr_static(type(backend), hook)
    if found is inspect.getattr_static(DeviceBackend, hook):
        return None
    if isinstance(found, (property, functools.cached_property)) or not (callable(found) or hasattr(found, "__get__")):
        names, kind = (
            ", ".join(inspect.signature(getattr(DeviceBackend, hook)).parameters),
            kind_of(cast("object", found)),
        )
        raise ConfigurationError(
            f"{type(backend).__name__}.{hook}: is {kind}, and kdp calls it; write def {hook}({names})"
        )
    own: object = vars(backend).get(hook)
    if own is not None:
        return (own, False) if callable(own) else None
    if isinstance(found, (staticmethod, classmethod)):
        decorated = cast("staticmethod[..., Any] | classmethod[Any, ..., Any]", found)
        return decorated.__func__, isinstance(found, classmethod)
    return (found, True) if inspect.isfunction(found) else None
