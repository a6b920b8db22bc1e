"""Every module of both distributions can be imported: a syntax error or a missing name shows at once."""

from __future__ import annotations

import importlib
import pkgutil

import kdp
import kdp_testkit


def test_every_module_can_be_imported() -> None:
    packages = (kdp, kdp_testkit)
    names = [found.name for each in packages for found in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
    assert len(names) > 200
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
