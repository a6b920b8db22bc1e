"""A vendor's project with pytest-asyncio, which is no dependency of kdp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import kdp, pytest
from kdp.testing import SimulatedKubelet

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self):
        return [kdp.Device(id="w0")]

async def test_the_fixture(kubelet):
    async with kubelet.serving(Widgets()):
        assert kubelet.allocatable() == {"example.com/widget": 1}

async def test_by_hand():
    async with SimulatedKubelet() as kubelet, kubelet.serving(Widgets()):
        assert kubelet.allocatable() == {"example.com/widget": 1}

async def test_a_driver(cluster):
    async with cluster.serving(Widgets()):
        assert [*await cluster.devices()] == ["w0"]
"""
MARKED = """
import pytest

@pytest.mark.asyncio
async def test_two_loops(kubelet):
    pass
"""


@pytest.fixture(scope="module")
def asyncio_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pytest-asyncio")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "pytest-asyncio"]
    subprocess.run(pip, check=True, timeout=120)
    return folder


def run(folder: Path, plugin: Path, text: str, mode: str) -> str:
    (folder / "test_widgets.py").write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-o", f"asyncio_mode={mode}", "-o", "asyncio_default_fixture_loop_scope=function", str(folder)),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(plugin)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_its_mode_auto_used_another_loop_than_the_fixture(tmp_path: Path, asyncio_plugin: Path) -> None:
    said = run(tmp_path, asyncio_plugin, TESTS, "auto")
    assert "3 passed" in said, said


def test_its_marker_is_refused_with_a_sentence(tmp_path: Path, asyncio_plugin: Path) -> None:
    said = run(tmp_path, asyncio_plugin, MARKED, "strict")
    assert "the fixture 'kubelet' and @pytest.mark.asyncio would use two event loops; remove that marker" in said, said
