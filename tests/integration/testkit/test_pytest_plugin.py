"""The pytest plugin in a vendor's project: no configuration, no marker, nothing loaded that is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WIDGETS = """
import kdp

class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, ready=True):
        self.ready = ready

    def open(self):
        if not self.ready:
            raise kdp.NotReady("the driver is not loaded")

    def discover(self):
        return [kdp.Device(id="w0", edits=kdp.ContainerEdits(env={"COLOR": "blue"}))]
"""


def run_pytest(directory: Path, test: str, *options: str) -> str:
    """Run pytest on one test file of a vendor, as his own process."""
    (directory / "widgets.py").write_text(WIDGETS)
    (directory / "test_widgets.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_vendors_tests_need_no_configuration(tmp_path: Path) -> None:
    """The profile comes from the marker or a parameter, and a plugin that is not ready tells why."""
    text = run_pytest(
        tmp_path,
        """
import pytest
from kdp.testing import Pod
from widgets import Widgets

async def test_a_pod_gets_a_widget(kubelet, plugin_for):
    async with plugin_for(Widgets()):
        pod = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
        assert pod.reply().envs == {"COLOR": "blue"}

@pytest.mark.kubelet("k134", autostart=False)
async def test_marker(kubelet):
    assert (kubelet.profile.name, kubelet.is_running) == ("k134", False)

@pytest.mark.parametrize("kubelet", ["k134", "k136"], indirect=True)
async def test_parameter(kubelet, request):
    assert kubelet.profile.name in request.node.name

async def test_neither(kubelet):
    assert (kubelet.profile.name, kubelet.is_running) == ("k137", True)

async def test_a_plugin_that_is_not_ready(kubelet, plugin_for):
    async with plugin_for(Widgets(ready=False), timeout=0.5):
        pass
""",
    )
    assert "1 failed, 5 passed" in text, text
    assert "not ready in 0.5 s: Widgets: the driver is not loaded" in text, text


def test_tests_that_do_not_use_it_load_nothing_of_it(tmp_path: Path) -> None:
    text = run_pytest(
        tmp_path,
        """
import sys

def test_it():
    heavy = {"grpc", "google.protobuf", "click", "rich"}
    if sys.version_info < (3, 14):  # from 3.14 on, pytest has asyncio by Python's own pdb
        heavy.add("asyncio")
    assert not heavy & sys.modules.keys()
""",
        *("-p", "no:anyio", "-p", "no:hypothesispytest"),
    )
    assert "1 passed" in text, text


@pytest.mark.anyio
async def test_a_fixture_of_the_same_name_wins(kubelet: object, profile: str) -> None:
    """This directory has its own ``kubelet``, with the profiles of its own fixture."""
    assert getattr(kubelet, "profile").name == profile  # noqa: B009 - whatever it is
