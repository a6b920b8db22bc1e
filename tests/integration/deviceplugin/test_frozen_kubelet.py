"""A kubelet that is frozen: its socket accepts, and nothing is answered."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from kdp.concurrency.backoff import Backoff
from kdp.deviceplugin.manager import PluginManager
from kdp.deviceplugin.options import ManagerOptions, Pace
from kdp.deviceplugin.tracking.polling import FIRST_PAUSE, LONGEST_PAUSE
from kdp.kubelet import KubeletPaths
from kdp.kubelet.calls import SILENCES_BEFORE_WARNING
from kdp.kubelet.podresources import CALL_DEADLINE

from .helpers import RESOURCE, Widgets, until

KUBELET = """
import sys, anyio
from kdp.testing import SimulatedKubelet

async def main():
    async with SimulatedKubelet(sys.argv[1]):
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


@pytest.fixture
def process(root: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", KUBELET, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


async def test_a_kubelet_that_is_frozen_is_noticed_and_its_return_too(
    root: Path, process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kdp.kubelet.podresources.CALL_DEADLINE", 0.5)
    pace = Pace(after_connect=0.1, period=0.2, again=0.2, between=0.1)
    options = ManagerOptions(paths=KubeletPaths.simulated(root), pace=pace)
    async with PluginManager([Widgets("w0")], options) as manager:
        await until(lambda: manager.is_ready and RESOURCE in manager.status().resources)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: "kubelet" in manager.status().resources[RESOURCE].details)
        assert "hangs or is stopped" in str(manager.status().resources[RESOURCE].details["kubelet"])
        assert manager.kubelet_problem is not None, "kdp_kubelet_frozen"
        assert manager.is_ready, "a restart of the plugin would not help"
        process.send_signal(signal.SIGCONT)
        await until(lambda: "kubelet" not in manager.status().resources[RESOURCE].details)
    assert caplog.text.count("hangs or is stopped") == 1
    assert caplog.text.count("the kubelet answers again") == 1


class _Longest(random.Random):
    """Draws the longest pause."""

    @override
    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def test_a_freeze_of_a_minute_went_unnoticed() -> None:
    """An idle plugin noticed it after up to 71 s. It is frozen at worst right after an answer."""
    pace = Pace()
    pauses = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE, rng=_Longest())
    again = [max(pace.between, pauses.next()) for _ in range(SILENCES_BEFORE_WARNING - 1)]
    rounds = SILENCES_BEFORE_WARNING * CALL_DEADLINE
    assert pace.period + rounds + sum(again) < 60
