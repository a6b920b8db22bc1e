"""Every direct dependency has a lower bound, and `make floors` pins exactly that one."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def floors() -> ModuleType:
    """scripts/floors.py as a module."""
    spec = importlib.util.spec_from_file_location("floors", ROOT / "scripts/floors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_declared_bound_becomes_a_pin() -> None:
    declared: list[str] = []
    for file in ("pyproject.toml", "testkit/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text())["project"]
        for lines in (project["dependencies"], *project.get("optional-dependencies", {}).values()):
            declared += lines
    names = {re.split(r"[\[<>=]", line)[0] for line in declared if not line.startswith("kdp-")}
    pins = floors().constraints()
    assert {pin.split("==")[0] for pin in pins} == names
    assert "grpcio==1.75.1" in pins
    assert "protobuf==6.31.1" in pins


def test_only_protobuf_has_an_upper_bound() -> None:
    """Upstream promises generated code one major version further; nobody else announces a break."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [line for line in project["dependencies"] if "<" in line] == ["protobuf>=6.31.1,<8"]


def test_a_dependency_without_a_bound_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "pyproject.toml"
    bare.write_text('[project]\ndependencies = ["attrs"]\n[project.optional-dependencies]\n')
    with pytest.raises(SystemExit, match="'attrs' has no lower bound"):
        floors().constraints(bare)
