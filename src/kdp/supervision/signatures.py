"""Checks how a backend's hooks can be called: a missing parameter is told at the start, not by the first pod.

A hook's own signature counts, and not that of what a decorator wraps, because the decorator is what is called.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigurationError
from ..model.backend import OPTIONAL_HOOKS, DeviceBackend, WrappedBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def check_signatures(backend: DeviceBackend) -> None:
    """Check that each hook of a backend takes what kdp calls it with.

    Raises:
        ConfigurationError: One does not.
    """
    if isinstance(backend, WrappedBackend):
        check_signatures(backend.inner)
        return
    for hook in ("discover", *sorted(OPTIONAL_HOOKS)):
        found = _written(backend, hook)
        if found is None:
            continue
        function, has_self = found
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


def _written(backend: DeviceBackend, hook: str) -> tuple[Callable[..., Any], bool] | None:
    """Return the vendor's function for a hook, and whether it takes ``self``; None: there is none that can be judged.

    No property is read, because that would run the vendor's code.
    """
    found = inspect.getattr_static(type(backend), hook)
    if found is inspect.getattr_static(DeviceBackend, hook):
        return None
    own: object = vars(backend).get(hook)
    if own is not None:
        return (own, False) if callable(own) else None
    if isinstance(found, (staticmethod, classmethod)):
        decorated = cast("staticmethod[..., Any] | classmethod[Any, ..., Any]", found)
        return decorated.__func__, isinstance(found, classmethod)
    return (found, True) if inspect.isfunction(found) else None
