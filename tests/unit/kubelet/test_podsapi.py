"""The pods API's watch where there is no socket of it; tests/integration has those with one."""

from __future__ import annotations

from pathlib import Path

import anyio
from tests.nobody import as_nobody

from kdp.kubelet.podsapi import PodsWatch


async def test_a_closed_directory_ended_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0)
    watch = PodsWatch(tmp_path / "closed/below/kubelet.sock")
    with as_nobody(), anyio.move_on_after(0.05) as waited:
        await watch.run(lambda: True)
    assert (waited.cancelled_caught, watch.is_synced) == (True, False)
