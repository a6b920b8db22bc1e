from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

from kdp.startup import collections_off

PACKAGES = ["kdp", "kdp.allocation", "kdp.cdi", "kdp.hardware"]


def test_each_name_of_a_stub_loads_and_is_listed() -> None:
    """A line of a stub in another form would be there for type checkers only."""
    for package in PACKAGES:
        loaded = importlib.import_module(package)
        for name in loaded.__all__:
            assert getattr(loaded, name) is vars(loaded)[name], "the second time it costs nothing"
            assert name in dir(loaded)
        assert loaded.__file__ is not None
        lines = Path(loaded.__file__).with_suffix(".pyi").read_text().splitlines()
        imports = [line for line in lines if "import" in line and "__future__" not in line]
        assert len(imports) == len(loaded.__all__)


def test_a_name_that_is_not_used_loads_nothing() -> None:
    code = "import sys, kdp.allocation; print(*sorted(name for name in sys.modules if name.startswith('kdp')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == {"kdp", "kdp.startup", "kdp.allocation"}


def test_collections_are_as_before() -> None:
    assert gc.isenabled()
    with collections_off():
        assert not gc.isenabled()
        with collections_off():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_module_that_was_not_loaded_is_not_loaded_afterwards() -> None:
    code = """
import ctypes, sys
from kdp.startup import ldconfig_off
with ldconfig_off():
    import asyncinotify
assert "ctypes.util" not in sys.modules and not hasattr(ctypes, "util")
import ctypes.util
assert ctypes.util.find_library.__module__ == "ctypes.util"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
