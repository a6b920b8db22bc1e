"""A backend that reports new reasons, kinds, and unknown ids without end: the log, the memory, and the truth stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.waiting import until

from kdp.testing import SimulatedKubelet

from .test_careless import CARELESS, GOOD, Start, program

SECONDS = 2.0

FLOOD = """
        end = time.monotonic() + SECONDS
        report.fault("x0", "first")
        for n in itertools.count():
            if time.monotonic() > end:
                break
            WHAT
        (HERE / "done").touch()
        LAST
"""

WHATS = {
    "flaps": ("report.fault('x0', f'{n}'); report.clear('x0')", "report.fault('x0', 'last')"),
    "kinds": ("report.fault('x0', f'{n} ' + 'x' * 2000, kind=f'k{n}')", "pass"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHATS)
async def test_a_flood_of_faults_fills_neither_the_log_nor_the_memory(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, name: str
) -> None:
    what, last = WHATS[name]
    watch = FLOOD.replace("SECONDS", str(SECONDS)).replace("WHAT", what).replace("LAST", last)
    async with start(program(watch=watch)) as plugin:
        await kubelet.until(allocatable={CARELESS: 1, GOOD: 1})
        before = resident(plugin.process.pid)
        (tmp_path / "go").touch()
        if name != "flaps":
            await kubelet.until(allocatable={CARELESS: 0})
        await until((tmp_path / "done").exists)
        (tmp_path / "sick").touch()
        await kubelet.until(allocatable={CARELESS: 0, GOOD: 0})
        assert plugin.process.returncode is None
        assert len(plugin.log) < 100_000, len(plugin.log)
        assert len(plugin.lines) < 60, len(plugin.lines)
        assert resident(plugin.process.pid) - before < 48_000


def resident(pid: int) -> int:
    """Return how much memory a process has, in KiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])
