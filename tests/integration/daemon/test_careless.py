"""A vendor's slips in one backend: the process lives, the other backend is served, a sick device is Unhealthy."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from kdp.testing import AdmissionError, Pod, SimulatedKubelet

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractAsyncContextManager[Any]]

CARELESS, GOOD = "example.com/careless", "example.com/good"

PROGRAM = """
import itertools, os, threading, time
from pathlib import Path
import kdp

HERE = Path(__file__).parent


class Odd:
    def _raise(self, *_):
        raise RuntimeError("odd")
    __str__ = __repr__ = __eq__ = __hash__ = __lt__ = __len__ = __bool__ = __format__ = _raise


class Careless(kdp.DeviceBackend):
    resource = "example.com/careless"
    poll_interval = 0.05
    stale_after = 0.2

    def discover(self):
        device = kdp.Device(id="x0")
        if (HERE / "go").exists():
            {discover}
        return [device]

    def watch(self, report):
        while not (HERE / "go").exists():
            time.sleep(0.01)
        {watch}
        report.stopping.wait()

    def allocate(self, devices):
        {allocate}
        return devices.edits()


class Good(kdp.DeviceBackend):
    resource = "example.com/good"
    poll_interval = 0.05

    def discover(self):
        sick = (HERE / "sick").exists()
        return [kdp.Device(id="g0", health=kdp.Health.unhealthy("sick") if sick else kdp.Health.healthy())]


if __name__ == "__main__":
    kdp.run(Careless(), Good())
"""


def program(*, discover: str = "pass", watch: str = "pass", allocate: str = "pass") -> str:
    return PROGRAM.replace("{discover}", discover).replace("{watch}", watch).replace("{allocate}", allocate)


SICK = [
    "kdp.Health.unhealthy(ValueError('the fan failed'))",
    "kdp.Health.unhealthy(Odd())",
    "kdp.Health.unhealthy('x' * 10_000_000)",
]
"""Healths that say wrongly that something is wrong."""

FAULTS = [
    "report.fault('x0', 'x' * 10_000_000)",
    "report.fault('x0', 'hot', kind=Odd())",
    "report.fault(['x0', 79, None, Odd(), ['x0']], 'hot')",
    "threading.Thread(target=lambda: report.fault('x0', ValueError('hot'))).start()",
]
"""Faults that are reported wrongly."""

DISCOVERIES = [
    "device = kdp.Device(id=Odd())",
    "raise Odd() if False else SystemExit(3)",
    "type(self).resource = property(Odd._raise)",
]
"""What else can be wrong in a discovery."""

ALLOCATIONS = [
    "return Odd()",
    "raise SystemExit(3)",
    "devices.state['a'] = float('nan')",
]
"""What can be wrong in an allocation."""


async def _good_is_served(plugin: Any, kubelet: SimulatedKubelet, here: Path) -> None:
    (here / "sick").touch()
    await kubelet.until(allocatable={GOOD: 0})
    (here / "sick").unlink()
    await kubelet.until(allocatable={GOOD: 1})
    assert (await kubelet.admit(Pod.asking({GOOD: 1}))).devices(GOOD)
    code, _ = await plugin.stop(signal.SIGTERM)
    assert code == 0
    assert "a bug of kdp" not in plugin.log


@pytest.mark.parametrize("hook", [*SICK, *FAULTS])
async def test_a_device_whose_reason_is_no_text_is_unhealthy_all_the_same(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, hook: str
) -> None:
    hooks = {"watch": hook} if hook in FAULTS else {"discover": f"device = kdp.Device(id='x0', health={hook})"}
    async with start(program(**hooks)) as plugin:
        await kubelet.until(allocatable={CARELESS: 1, GOOD: 1})
        (tmp_path / "go").touch()
        await kubelet.until(allocatable={CARELESS: 0})
        await _good_is_served(plugin, kubelet, tmp_path)


@pytest.mark.parametrize("slip", DISCOVERIES)
async def test_a_discovery_that_goes_wrong_ends_nobody(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, slip: str
) -> None:
    async with start(program(discover=f"(HERE / 'gone').touch(); {slip}")) as plugin:
        await kubelet.until(allocatable={CARELESS: 1, GOOD: 1})
        (tmp_path / "go").touch()
        await kubelet.until(lambda: (tmp_path / "gone").exists())
        await _good_is_served(plugin, kubelet, tmp_path)


@pytest.mark.parametrize("slip", ALLOCATIONS)
async def test_an_allocation_that_goes_wrong_ends_nobody(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, slip: str
) -> None:
    async with start(program(allocate=slip)) as plugin:
        await kubelet.until(allocatable={CARELESS: 1, GOOD: 1})
        refusal = ""
        try:
            await kubelet.admit(Pod.asking({CARELESS: 1}))
        except AdmissionError as error:
            refusal = str(error)
        assert "Traceback" not in refusal
        await _good_is_served(plugin, kubelet, tmp_path)


async def test_the_line_of_a_renamed_option_had_no_level_so_that_simulate_passed(
    start: Start, kubelet: SimulatedKubelet
) -> None:
    program = """
import kdp

class Cards(kdp.DeviceBackend):
    resource = "example.com/careless"
    renamed_options = {"max_errors": "ecc_limit"}
    def __init__(self, ecc_limit: int = 3) -> None: ...
    def discover(self): return [kdp.Device(id="a")]
"""
    async with start(program, "Cards", "--set", "max_errors=5") as plugin:
        line = await plugin.says("the parameter is called ecc_limit now; rename it")
        assert "WARNING kdp.command.targets" in line
        await kubelet.until(streaming=CARELESS)
    async with start(program, "Cards", "--set", "max_errors=5", "--log-format", "json") as plugin:
        line = await plugin.says("the parameter is called ecc_limit now; rename it")
        assert '"level":"warning"' in line.replace(" ", "").lower()
