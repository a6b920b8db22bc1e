"""A file that a backend reads: a bad edit must not wait for the next restart to take the plugin down."""

from __future__ import annotations

import signal
from pathlib import Path

from kdp.testing import SimulatedKubelet

from .test_process import Start

RESOURCE = "example.com/slot"

SLOTS = """
import json
from pathlib import Path
import kdp

class Slots(kdp.DeviceBackend):
    resource = "example.com/slot"
    poll_interval = None

    def __init__(self, table: Path):
        self.table = self.watched_file(table, json.loads)

    def discover(self):
        return [kdp.Device(id=name) for name in self.table.current]
"""


async def test_a_bad_edit_of_a_backends_file_was_a_time_bomb_for_the_next_restart(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    table = tmp_path / "table.json"
    table.write_text('["a"]')
    arguments = (SLOTS, "Slots", "--set", f"table={table}", "--http", "127.0.0.1:0", "--metrics", "on")
    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 1})
        table.write_text('["a", "b"]')
        await kubelet.until(allocatable={RESOURCE: 2})
        await plugin.says("table.json has changed and is in force")
        table.write_text('["a", ')
        line = await plugin.says("the last good content stays in force")
        assert "table.json: Expecting value: line 1 column 7" in line
        status, body = await plugin.readyz()
        assert status == 200
        assert "table.json: Expecting value" in body["configuration"]["reason"]
        assert "kdp_config_rejected 1.0" in (await plugin.asked("/metrics"))[1]
        await plugin.stop()

    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        assert "Expecting value" in (await plugin.readyz())[1]["configuration"]["reason"]
        table.write_text('["c"]')
        plugin.process.send_signal(signal.SIGHUP)
        await kubelet.until(allocatable={RESOURCE: 1})
        await plugin.says("table.json has changed and is in force")
        assert "configuration" not in (await plugin.readyz())[1]
        table.write_text("[")
        await plugin.says("the last good content stays in force", times=2)
        await plugin.stop()

    (tmp_path / "c.yaml").write_text("log-level: info\n")
    async with start(*arguments, "--config", str(tmp_path / "c.yaml"), "--strict-config") as plugin:
        assert await plugin.ends() == 2
        assert "Expecting value" in plugin.log
