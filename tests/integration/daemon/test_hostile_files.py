"""A plugin's process and files that others put into its directories: it goes on, in time, and says what is wrong."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import anyio
import pytest

from kdp.testing import Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .test_process import RESOURCE, Figure, Start, program

HOLDS = "def released(self, devices): pass"


async def test_a_fifo_in_the_cdi_directory_does_not_block_the_loop(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    for name in ("kdp_kdp.example.com_widget.json", "kdp_kdp.example.com_other.json"):
        os.mkfifo(cdi / name)
    nodes = """
def allocate(self, devices):
    return kdp.ContainerEdits(env={"A": "1"})
"""
    async with start(program(nodes), KDP_CDI="beside", KDP_CDI_DIR=str(cdi)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        assert (await plugin.stop())[0] == 0
    assert [path.name for path in cdi.iterdir() if path.is_fifo()] == []


async def test_a_fifo_in_the_ledger_directory_does_not_delay_an_allocate(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.mkfifo(state / "example.com_widget.0123456789ab.json")
    (state / "example.com_widget.0123456789ac.json").symlink_to("/dev/zero")
    (state / "example.com_widget.0123456789ad.json").mkdir()
    (state / "example.com_widget.0123456789ae.json").write_text('{"a":' * 100_000)
    async with start(program(HOLDS), KDP_STATE_DIR=str(state)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        await plugin.says("set aside", times=4)
        began = time.monotonic()
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        took = time.monotonic() - began
    figure("Allocate beside a FIFO in the ledger directory", took * 1000, "ms")
    assert took < PATIENCE
    assert "has not taken the allocations" not in plugin.log


async def test_a_lock_file_that_another_program_holds_is_named(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    locks: list[Path] = []
    async with start(program(), KDP_STATE_DIR=str(state)) as plugin:
        await kubelet.until(streaming=RESOURCE)
        locks += state.glob("*.device-plugin.lock")
        await plugin.stop()
    [path] = locks
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with start(program(), KDP_STATE_DIR=str(state)) as plugin:
            await plugin.says(f"another program holds the lock {path}")
            fcntl.flock(held, fcntl.LOCK_UN)
            await kubelet.until(streaming=RESOURCE)


@pytest.mark.slow
async def test_20000_owed_allocations_are_taken_over_in_time(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    owed = [{"uid": f"u{i}", "ids": [f"x{i}"], "state": {}, "seen": True} for i in range(20_000)]
    document = {"version": 1, "resource": RESOURCE, "allocations": owed}
    (state / "example.com_widget.0123456789ab.json").write_text(json.dumps(document))
    async with start(program(HOLDS), KDP_STATE_DIR=str(state)) as plugin:
        began = time.monotonic()
        await plugin.says("allocations taken over: 20000")
        took = time.monotonic() - began
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        allocated = time.monotonic()
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        figure("Allocate beside 20,000 owed allocations", (time.monotonic() - allocated) * 1000, "ms")
        with anyio.fail_after(PATIENCE):
            assert (await plugin.stop())[0] == 0
    figure("20,000 owed allocations are taken over, from the process's start", took, "s")
