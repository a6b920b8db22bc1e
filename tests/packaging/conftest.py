"""What the tests of what we publish share: the release's two files, built once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {
    "kdp-sdk": ".",
    "kdp-testkit": "testkit",
    "kdp-nvidia-gpu": "examples/nvidia_gpu",
    "kdp-fpga": "examples/fpga",
    "kdp-rdma": "examples/rdma",
}
"""What we publish, and in which folder it is."""


@attrs.frozen
class Built:
    """The two files of one release."""

    sdist: Path
    wheel: Path


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this folder, which needs the package index, to `make test-packaging`."""
    return True if config.args_source is pytest.Config.ArgsSource.TESTPATHS else None


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder once for all the processes that share this test run."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel built from it."""

    def build(out: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    out = once(tmp_path_factory, "dist", build)
    return Built(sdist=next(out.glob("*.tar.gz")), wheel=next(out.glob("*.whl")))


@pytest.fixture(scope="session")
def wheels(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution."""

    def build(out: Path) -> None:
        for folder in {*DISTRIBUTIONS.values()} - {"."}:
            command = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={out}"]
            done = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    out = once(tmp_path_factory, "wheels", build)
    others = {each: next(out.glob(f"{each.replace('-', '_')}-*.whl")) for each in DISTRIBUTIONS if each != "kdp-sdk"}
    return {"kdp-sdk": built.wheel, **others}
