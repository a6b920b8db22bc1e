"""The pytest plugin in a vendor's project: no configuration, no marker, nothing loaded that is not used."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.testing import Pod, ScenarioError, SimulatedCluster, SimulatedKubelet

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


def test_a_call_without_await_let_a_test_pass(tmp_path: Path) -> None:
    text = run_pytest(
        tmp_path,
        """
from kdp.testing import Pod
from widgets import Widgets

async def test_kubelet(kubelet):
    async with kubelet.serving(Widgets()):
        kubelet.admit(Pod.asking({"example.com/widget": 1}))

async def test_kept(kubelet):
    answer = kubelet.restart()
    assert answer

def test_no_coroutine(kubelet):
    kubelet.restart()

async def test_cluster(cluster):
    async with cluster.serving(Widgets()):
        cluster.pod("w0")

async def test_awaited(kubelet):
    await kubelet.restart()
""",
        *("-W", "ignore"),
    )
    assert "4 failed, 1 passed" in text, text
    assert ".admit' was never awaited" in text, text
    assert "coroutine 'SimulatedCluster.pod' was never awaited" in text, text


def test_what_was_not_entered_let_a_test_pass(tmp_path: Path) -> None:
    text = run_pytest(
        tmp_path,
        """
from widgets import Widgets

def test_kubelet(kubelet):
    kubelet.serving(Widgets())

async def test_cluster(cluster):
    cluster.serving(Widgets())

async def test_class(kubelet):
    async with kubelet.serving(Widgets):
        pass

async def test_driver_class(cluster):
    async with cluster.serving(Widgets):
        pass
""",
    )
    assert "2 failed, 2 passed" in text, text  # beside trio's, which older versions of anyio ask for
    for name in ("kubelet", "cluster"):
        assert f"{name}.serving(...) was not entered; write: async with {name}.serving(...)" in text, text
    assert text.count("backend Widgets: this is the class; give an object of it, Widgets()") >= 2, text


def test_a_fixture_of_that_name_is_its_owners(tmp_path: Path) -> None:
    text = run_pytest(
        tmp_path,
        """
import pytest

@pytest.fixture
def cluster():
    return "their own"

@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_theirs(cluster):
    async def forgotten():
        pass
    forgotten()
""",
    )
    assert "1 passed" in text, text


def test_a_vendors_tests_need_no_configuration(tmp_path: Path) -> None:
    """The profile comes from the marker or a parameter, and a plugin that is not ready tells why."""
    text = run_pytest(
        tmp_path,
        """
import pytest
from kdp.testing import Pod
from widgets import Widgets

async def test_a_pod_gets_a_widget(kubelet):
    async with kubelet.serving(Widgets()):
        pod = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
        assert pod.reply().envs == {"COLOR": "blue"}

@pytest.mark.kubelet("k134", autostart=False)
async def test_marker(kubelet):
    assert (kubelet.profile.name, kubelet.is_running) == ("k134", False)

async def test_a_driver(cluster):
    async with cluster.serving(Widgets()):
        assert [*await cluster.devices()] == ["w0"]
        pod = await cluster.pod("w0")
        assert (await cluster.start(pod)).env == {"COLOR": "blue"}
        await cluster.stop(pod)
        assert not [*cluster.cdi.glob("*.json")]

async def test_a_driver_that_is_not_ready(cluster):
    async with cluster.serving(Widgets(ready=False), timeout=0.5):
        pass

@pytest.mark.parametrize("kubelet", ["k134", "k136"], indirect=True)
async def test_parameter(kubelet, request):
    assert kubelet.profile.name in request.node.name

async def test_neither(kubelet):
    assert (kubelet.profile.name, kubelet.is_running) == ("k137", True)

async def test_a_plugin_that_is_not_ready(kubelet):
    async with kubelet.serving(Widgets(ready=False), timeout=0.5):
        pass
""",
    )
    assert "2 failed, 6 passed" in text, text
    assert text.count("not ready in 0.5 s: Widgets: the driver is not loaded") >= 2, text


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


# -- what a vendor met -------------------------------------------------------------------------------------------------


class Scrubbed(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self) -> None:
        self.clean: list[str] = []

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="w0")]

    @override
    def released(self, devices: kdp.Allocation) -> None:
        self.clean += devices.ids


@pytest.mark.anyio
async def test_released_took_30_s_in_a_test_and_wrote_to_the_real_machine() -> None:
    backend = Scrubbed()
    async with SimulatedKubelet() as kubelet, kubelet.serving(backend):
        pod = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
        state = kubelet.paths.device_plugin_dir.parent / "kdp"
        await kubelet.until(lambda: [*state.glob("example.com_widget*.json")])
        await kubelet.delete(pod)
        await kubelet.until(lambda: bool(backend.clean))
    assert backend.clean == ["w0"]


@pytest.mark.anyio
async def test_a_released_that_failed_was_called_again_as_late_as_on_a_node() -> None:
    """After 5, 10, 20, and 40 s: the test would not end in its time."""

    class Stubborn(Scrubbed):
        tries = 0

        @override
        def released(self, devices: kdp.Allocation) -> None:
            self.tries += 1
            if self.tries < 5:
                raise OSError("the card does not answer")
            super().released(devices)

    backend = Stubborn()
    async with SimulatedKubelet() as kubelet, kubelet.serving(backend):
        pod = await kubelet.admit(Pod.asking({"example.com/widget": 1}))
        await kubelet.delete(pod)
        await kubelet.until(lambda: bool(backend.clean), timeout=30.0)
    assert backend.tries == 5


@pytest.mark.anyio
async def test_a_failed_assert_was_a_group_of_thirty_lines() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with SimulatedKubelet() as kubelet, kubelet.serving(Scrubbed()):
            raise ZeroDivisionError
    assert caught.value.__context__ is None
    with pytest.raises(ZeroDivisionError) as caught:
        async with SimulatedCluster() as cluster, cluster.serving(Scrubbed()):
            raise ZeroDivisionError
    assert caught.value.__context__ is None


@pytest.mark.anyio
async def test_a_device_that_no_slice_has_is_named() -> None:
    async with SimulatedCluster() as cluster, cluster.serving(Scrubbed()):
        with pytest.raises(ScenarioError, match="no slice has the device 'w9': there are w0"):
            await cluster.pod("w9")
        with pytest.raises(ScenarioError, match="asks for no device: name at least one"):
            await cluster.pod(parameters={"kind": "Mode"})


@pytest.mark.anyio
async def test_serve_used_some_directories_of_a_test_and_some_of_the_node() -> None:
    async with SimulatedKubelet() as kubelet, anyio.create_task_group() as tasks:
        directory = kubelet.paths.device_plugin_dir
        tasks.start_soon(functools.partial(kdp.serve, Scrubbed(), device_plugin_dir=directory))
        await kubelet.until(allocatable={"example.com/widget": 1})
        assert any((directory.parent / "kdp").iterdir())
        tasks.cancel_scope.cancel()
