"""Two instances for one resource, as in a rolling update with surge (contract sections 2.5 and 11)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.registration import SocketNames
from kdp.deviceplugin.tracking.drift import ResourceView
from kdp.testing import SimulatedKubelet, events

from ..testkit.bare_plugin import BarePlugin
from .helpers import RESOURCE, Figure, Widgets, connected, lists, own_sockets, registers, running, until


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_the_old_instance_leaves(kubelet: SimulatedKubelet, figure: Figure) -> None:
    """Scenarios 60 and 61."""
    async with running(kubelet, Widgets("w0", "w1")) as old:
        await kubelet.until(streaming=RESOURCE)
        async with running(kubelet, Widgets("w0", "w1")) as new:
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2 and len(lists(kubelet)) == 2)
            newest = registers(kubelet)[-1].endpoint
            await old._stop()
            if kubelet.profile.one_client_per_resource:
                await kubelet.until(lambda: len(registers(kubelet)) == 3)
                lost = kubelet.events.of(events.StreamEnded)[-1].time
                back = registers(kubelet)[-1].time
                figure(f"overlap, {kubelet.profile.name}: lost -> Register", (back - lost) * 1e3, "ms")
            else:
                await kubelet.until(lambda: kubelet.streams(RESOURCE) == 1)
                assert registers(kubelet)[-1].endpoint == newest
            await kubelet.until(allocatable={RESOURCE: 2}, streaming=RESOURCE)
            await kubelet.plugin(RESOURCE).allocate(["w0"])
            assert new.status().resources[RESOURCE].healthy == 2
            assert len(own_sockets(kubelet.paths.device_plugin_dir)) == 1
    assert all(received.healthy == 2 for received in lists(kubelet))  # nobody said goodbye with an empty list


LISTENING = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(path: Path) -> Iterator[int]:
    """Have another process listen at a path, and yield its id."""
    command = [sys.executable, "-c", LISTENING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield process.pid
        process.communicate()  # at the end of its input it ends


async def test_a_second_process_that_comes_later_is_noticed_and_its_end_too(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said at the start only: a second DaemonSet a day later was silent."""
    monkeypatch.setattr("kdp.deviceplugin.rivals.LOOK_PAUSE", 0.05)
    path = SocketNames(kubelet.paths.device_plugin_dir, RESOURCE).path(1)
    async with connected(kubelet, Widgets("w0")) as manager:
        assert "rival" not in manager.status().resources[RESOURCE].details
        with listening(path) as pid:
            await until(lambda: "rival" in manager.status().resources[RESOURCE].details)
            assert f"process {pid} serves" in str(manager.status().resources[RESOURCE].details["rival"])
            assert manager.is_ready
        await until(lambda: "rival" not in manager.status().resources[RESOURCE].details)
    told = [message for message in caplog.messages if f"process {pid}" in message]
    assert len(told) == 2, told
    assert told[1] == f"{RESOURCE}: process {pid} no longer serves this resource"


async def test_another_plugin_of_the_resource_is_known_by_its_ids(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin that is not made with kdp has no socket that tells its resource."""
    quick = Pace(after_connect=0.05, period=0.05, again=0.05, between=0.05, lasting=1.0)
    async with connected(kubelet, Widgets("w0"), pace=quick) as manager:
        bare = BarePlugin(kubelet.paths.device_plugin_dir, devices={"x0": "Healthy", "x1": "Healthy"})
        await bare.serve()
        await bare.register(kubelet.paths.kubelet_socket)
        await until(lambda: "rival" in manager.status().resources[RESOURCE].details)
        assert "2 devices that are not ours, as x0" in str(manager.status().resources[RESOURCE].details["rival"])
        assert manager.kubelet_view(RESOURCE) == ResourceView(disagrees=True, foreign=2)
        assert manager.is_ready
        await bare.stop()
        await until(lambda: "rival" not in manager.status().resources[RESOURCE].details)
        await until(lambda: manager.kubelet_view(RESOURCE) == ResourceView(disagrees=False, foreign=0))
    told = caplog.text.count("another plugin serves this resource as well")
    assert told == caplog.text.count("no longer has devices of another plugin") >= 1
