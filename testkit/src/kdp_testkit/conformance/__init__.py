"""The conformance kit: does a device plugin, in any language, do what the kubelet needs of it?

75 scenarios of the kubelet contract (section 13), each a check with a stable id. Three ways in: `check_backend` for a
class in this process, ``kdp conformance -- COMMAND`` for a program, and the pytest marker ``conformance`` of `marker`.

A failed check says what the kubelet saw, what it should have seen, why, and what the plugin's author does about it.
What cannot be decided is ``not_applicable`` with its reason, never passed.

Nothing is loaded before it is used: the pytest plugin must not cost those who do not need it.
"""

from __future__ import annotations

from kdp.startup import lazy_imports

with lazy_imports(globals()):
    from .checks import ConformanceCheck as ConformanceCheck
    from .deviceplugin.catalogue import CHECKS as CHECKS
    from .deviceplugin.runner import check_backend as check_backend
    from .deviceplugin.runner import run_checks as run_checks
    from .instance import Levers as Levers
    from .reports import CheckResult as CheckResult
    from .reports import ConformanceReport as ConformanceReport
