from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kdp import startup
from kdp.startup import collections_off

PACKAGES = ["kdp", "kdp.allocation", "kdp.cdi", "kdp.hardware"]


def test_each_name_of_a_package_loads_and_is_listed() -> None:
    for package in PACKAGES:
        loaded = importlib.import_module(package)
        for name in loaded.__all__:
            assert getattr(loaded, name) is vars(loaded)[name], "the second time it costs nothing"
            assert name in dir(loaded)
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
            _ = loaded.nothing


def test_kdp_is_imported_from_a_zip_archive(tmp_path: Path) -> None:
    with zipfile.PyZipFile(f"{tmp_path}/kdp.zip", "w") as archive:
        archive.writepy(os.fspath(Path(startup.__file__).parent))
    code = "import kdp, kdp.hardware; print(kdp.__file__, kdp.Device(id='a').id, kdp.hardware.Host, sep='|')"
    environment = {**os.environ, "PYTHONPATH": os.fspath(tmp_path / "kdp.zip")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/kdp.zip/kdp/__init__.pyc|a|<class 'kdp.hardware.host.Host'>\n"


def test_a_name_that_is_not_used_loads_nothing() -> None:
    code = "import sys, kdp.allocation; print(*sorted(name for name in sys.modules if name.startswith('kdp')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == {"kdp", "kdp._version", "kdp.startup", "kdp.allocation"}


def test_collections_are_as_before() -> None:
    assert gc.isenabled()
    with collections_off():
        assert not gc.isenabled()
        with collections_off():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
