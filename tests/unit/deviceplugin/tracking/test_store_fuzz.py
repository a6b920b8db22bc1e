"""Ledgers of anybody: they are taken over or set aside, and nothing that is taken over breaks what comes after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
from tests.fuzzing import as_bytes, damaged, fuzz, replaced

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking.allocations import Allocations
from kdp.deviceplugin.tracking.store import AllocationStore
from kdp.supervision.hooks import check_state
from kdp_testkit.patience import PATIENCE

RESOURCE = "example.com/widget"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
LEDGER: dict[str, Any] = {
    "version": 1,
    "resource": RESOURCE,
    "plugin_dir": str(PLUGINS),
    "allocations": [
        {
            "uid": "u1",
            "ids": ["w0", "w1"],
            "state": {"a": [1, None]},
            "seen": True,
            "given": {"w0": {"nodes": ["/dev/w0"], "identity": "serial 1"}},
        },
        {"uid": "u2", "ids": ["w1"], "state": {}, "seen": False, "pods": [["default", "train-0"]]},
    ],
}


def test_a_ledger_is_taken_over_or_set_aside(tmp_path: Path, figure: Callable[[str, float, str], None]) -> None:
    async def take_over(data: bytes) -> None:
        path = tmp_path / "example.com_widget.0123456789ab.json"
        path.write_bytes(data)
        store = AllocationStore(tmp_path, RESOURCE, PLUGINS)
        found = await store.adopt()
        assert found or not path.exists() or b"allocations" in data, "what is not taken over is set aside"
        allocations = Allocations(attrs.evolve(Pace()))
        allocations.adopt([saved for saved in found if saved.ids], 0.0)
        for at in (1.0, 40.0, 80.0):
            allocations.listed({}, (), asked_at=at, now=at, is_complete=True)
            allocations.next_look()
        for record in allocations.owed(RESOURCE):
            check_state(record.state)
            allocations.suspects(record)
            allocations.released(record)
        store.match(found)
        store.take()
        assert await store.saved(patience=PATIENCE), "what was read can be written"
        store.match([])
        assert await store.saved(patience=PATIENCE)
        assert not await store.close(PATIENCE)

    inputs = replaced([LEDGER]).map(as_bytes) | damaged([as_bytes(LEDGER)])
    tried = fuzz("ledger", lambda data: anyio.run(take_over, data), (), inputs, examples=150)
    figure("fuzzing: ledgers", tried, "inputs")
