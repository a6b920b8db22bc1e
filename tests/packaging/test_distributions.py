"""What we publish: the wheel, installed where nothing else is, and the sdist, from which the wheel can be built."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from .conftest import DISTRIBUTIONS, ROOT, Built, once

# `import kdp` is for a program that may never talk to a kubelet; each of these comes when something asks for it.
HEAVY = (
    "anyio",
    "asyncio",
    "asyncinotify",
    "cattrs",
    "click",
    "google",
    "grpc",
    "http",
    "kdp.command",
    "kdp.daemon",
    "kdp.dra",
    "kdp.deviceplugin",
    "kdp.proto",
    "kdp.testing",
    "lightkube",
    "prometheus_client",
    "pytest",
    "rich",
    "yaml",
)

LOOK = """
import json, sys
import kdp
status = open("/proc/self/status").read()
rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
print(json.dumps({"file": kdp.__file__, "version": kdp.__version__, "modules": sorted(sys.modules), "rss_kb": rss}))
"""


@pytest.fixture(scope="session")
def empty_environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it pulls in, without any extra."""

    def install(home: Path) -> None:
        venv.create(home, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", str(built.wheel)], check=True, timeout=300)

    return once(tmp_path_factory, "environment", install)


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the empty environment, away from this repository."""
    return subprocess.run([str(program), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def project(distribution: str) -> dict[str, Any]:
    """What the pyproject.toml of a distribution declares."""
    table: dict[str, Any] = tomllib.loads((ROOT / DISTRIBUTIONS[distribution] / "pyproject.toml").read_text())[
        "project"
    ]
    return table


def metadata_of(wheel: Path) -> Message:
    """What pip reads of a wheel."""
    with zipfile.ZipFile(wheel) as opened:
        [name] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(opened.read(name).decode())


def package_files() -> set[str]:
    """Everything in src/kdp that belongs to the package."""
    return {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/kdp").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
        metadata = wheel.read("kdp_sdk-0.1.0.dist-info/METADATA").decode()
    info = [name for name in names if name.startswith("kdp_sdk-0.1.0.dist-info/")]
    assert set(names) - set(info) == package_files()
    assert "kdp/py.typed" in names
    assert "kdp_sdk-0.1.0.dist-info/licenses/LICENSE" in info
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_what_a_node_installs_injects_no_faults(built: Built) -> None:
    """Faults on command, C sources and private mounts are for tests: they are in kdp-testkit or in an example."""
    with zipfile.ZipFile(built.wheel) as wheel:
        texts = {name: wheel.read(name).decode() for name in wheel.namelist()}
    assert not [
        name
        for name in texts
        if not name.endswith((".py", ".pyi", ".proto", ".md", "py.typed", "page/script.js", "page/style.css"))
        and not name.startswith("kdp/admin/manifests/monitoring/")
        and "/licenses/" not in name
        and ".dist-info/" not in name
    ]
    assert not [name for name in texts if re.search(r"testkit|faults|conformance|simulated|recording", name)]
    code = {name: text for name, text in texts.items() if name.endswith(".py")}
    assert not [name for name, text in code.items() if re.search(r"unshare|nsenter|setns|CLONE_NEWNS", text)]
    assert not [name for name, text in code.items() if re.search(r"^\s*(from|import) kdp_testkit", text, re.MULTILINE)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_wheel_of_a_distribution_is_its_package(wheels: dict[str, Path], distribution: str) -> None:
    with zipfile.ZipFile(wheels[distribution]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / DISTRIBUTIONS[distribution] / "src"
    packages = {name.partition("/")[0] for name in names}
    assert len(packages) == 1
    there = {path for package in packages for path in (source / package).rglob("*") if path.is_file()}
    assert names == {str(path.relative_to(source)) for path in there if path.suffix != ".pyc"}


def test_all_distributions_have_one_version(wheels: dict[str, Path]) -> None:
    versions = {metadata_of(wheel)["Version"] for wheel in wheels.values()}
    assert versions == {"0.1.0"}
    of_ours = {
        line
        for distribution in DISTRIBUTIONS
        for lines in (
            project(distribution)["dependencies"],
            *project(distribution).get("optional-dependencies", {}).values(),
        )
        for line in lines
        if line.startswith("kdp-") and "==" in line
    }
    assert {line.partition("==")[2] for line in of_ours} == versions


def test_each_extra_brings_what_it_declares(wheels: dict[str, Path]) -> None:
    metadata = metadata_of(wheels["kdp-sdk"])
    extras = project("kdp-sdk")["optional-dependencies"]
    assert {*metadata.get_all("Provides-Extra", [])} == {*extras}
    required = [line.partition(";") for line in metadata.get_all("Requires-Dist", [])]
    for extra, declared in extras.items():
        brought = {line.strip() for line, _, marker in required if re.search(f"""extra == ['"]{extra}['"]""", marker)}
        assert {re.split(r"[<>=]", line)[0].lower() for line in brought} == {
            re.split(r"[<>=]", line)[0].lower() for line in declared
        }
        ours = {"testing": "kdp-testkit", "nvidia-gpu": "kdp-nvidia-gpu", "fpga": "kdp-fpga", "rdma": "kdp-rdma"}.get(
            extra
        )
        assert {line for line in brought if line.startswith("kdp-")} == ({f"{ours}==0.1.0"} if ours else set())
    assert not [line for line, _, marker in required if line.startswith("kdp-") and not marker]


def test_the_sdist_holds_what_building_and_testing_need(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.removeprefix("kdp_sdk-0.1.0/") for name in sdist.getnames()}
    wanted = {f"src/{name}" for name in package_files()}
    wanted |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "scripts/proto.py"}
    wanted |= {"tests/conftest.py", "tests/packaging/test_distributions.py"}
    assert wanted <= names
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or name.startswith(".git/")]


def test_the_installed_package_imports_and_stays_light(
    empty_environment: Path, tmp_path: Path, figure: Callable[[str, float, str], None]
) -> None:
    python = empty_environment / "bin/python"
    run(python, "-I", "-W", "error", "-c", LOOK, cwd=tmp_path)  # compiles, which costs memory that no later run pays
    done = run(python, "-I", "-W", "error", "-c", LOOK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert Path(seen["file"]).is_relative_to(empty_environment)
    assert seen["version"] == "0.1.0"
    loaded = [name for name in seen["modules"] if name.startswith(tuple(f"{heavy}." for heavy in HEAVY))]
    assert not loaded + [name for name in seen["modules"] if name in HEAVY]
    figure("import kdp, RSS", seen["rss_kb"] / 1024, "MB (goal 20)")
    assert seen["rss_kb"] < 40 * 1024


def test_the_plugin_needs_no_extra(empty_environment: Path, tmp_path: Path) -> None:
    code = "import kdp; kdp.run, kdp.serve"
    done = run(empty_environment / "bin/python", "-I", "-W", "error", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_without_its_extra_names_the_extra(empty_environment: Path, tmp_path: Path) -> None:
    done = run(empty_environment / "bin/kdp", "--help", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "kdp-sdk[cli]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkout_is_installed_in_one_line_by_an_old_pip(tmp_path: Path) -> None:
    """pip 23.2, which Debian and pyenv have, refuses the two distributions in the other order."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "pip==23.2"], check=True, timeout=300)
    [line] = re.findall(r"^\$ pip install (.+)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    subprocess.run([*pip, "--dry-run", *shlex.split(line)], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("name", ["fpga", "rdma"])
def test_a_wheel_holds_the_recorded_node_of_its_backend(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[f"kdp-{name}"]) as wheel:
        assert f"kdp_{name}/recorded_node.tar.gz" in wheel.namelist()
