"""The conformance kit: does a device plugin, in any language, do what the kubelet needs of it?

75 scenarios of the kubelet contract (section 13), each a check with a stable id. Three ways in: `check_backend` for a
class in this process, ``kdp conformance -- COMMAND`` for a program, and the pytest marker ``conformance`` of `marker`.

A failed check says what the kubelet saw, what it should have seen, why, and what the plugin's author does about it.
What cannot be decided is ``not_applicable`` with its reason, never passed.

Nothing is loaded before it is used: the pytest plugin must not cost those who do not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checks import ConformanceCheck
    from .deviceplugin.catalogue import CHECKS
    from .deviceplugin.runner import check_backend, run_checks
    from .instance import Levers
    from .reports import CheckResult, ConformanceReport

__all__ = [
    "CHECKS",
    "CheckResult",
    "ConformanceCheck",
    "ConformanceReport",
    "Levers",
    "check_backend",
    "run_checks",
]

_HOMES = {
    "CHECKS": "deviceplugin.catalogue",
    "CheckResult": "reports",
    "ConformanceCheck": "checks",
    "ConformanceReport": "reports",
    "Levers": "instance",
    "check_backend": "deviceplugin.runner",
    "run_checks": "deviceplugin.runner",
}


def __getattr__(name: str) -> object:
    """Load a name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List what there is."""
    return sorted({*globals(), *__all__})
