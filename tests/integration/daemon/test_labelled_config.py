"""``kdp run --config-label``: a label of the node names the configuration, and switches it without a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kdp.testing import SimulatedKubelet
from kdp_testkit.dra import objects
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig

from .test_process import RESOURCE, Start, program

KEY = "example.com/kdp"
QUICK = "import kdp.command.chosen_config\nkdp.command.chosen_config.PERIOD = 0.1\n"
"""So that a test needs not wait half a minute."""


@pytest.fixture
async def server() -> AsyncIterator[SimulatedApiServer]:
    async with SimulatedApiServer() as server:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        yield server


async def label(server: SimulatedApiServer, value: str | None) -> None:
    node: dict[str, Any] = await server.ask("GET", "/api/v1/nodes/node0")
    node["metadata"]["labels"] = {} if value is None else {KEY: value}
    await server.ask("PUT", "/api/v1/nodes/node0", node)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, count in (("default", 2), ("many", 5), ("few", 1)):
        (folder / f"{name}.yaml").write_text(f"set: {{count: {count}}}\n")
    return folder


def arguments(server: SimulatedApiServer, configs: Path) -> tuple[str, ...]:
    return (
        *(QUICK + program(), "W", "--config", str(configs), f"--config-label={KEY}", "--node-name=node0"),
        *(f"--kubeconfig={write_kubeconfig(configs.parent, server.url)}", "--http=127.0.0.1:0"),
    )


async def test_the_label_switches_the_configuration_without_a_restart(
    start: Start, kubelet: SimulatedKubelet, server: SimulatedApiServer, configs: Path
) -> None:
    await label(server, "many")
    async with start(*arguments(server, configs)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 5})
        await label(server, "few")
        await kubelet.until(allocatable={RESOURCE: 1})
        await label(server, None)
        await kubelet.until(allocatable={RESOURCE: 2})
        # So does a changed file, as a ConfigMap's is.
        (configs / "default.yaml").write_text("set: {count: 11}\n")
        await kubelet.until(allocatable={RESOURCE: 11})
        status, body = await plugin.readyz()
        assert (status, "configuration" in body) == (200, False)
        assert (await plugin.stop())[0] == 0
    assert "Traceback" not in plugin.log


async def test_the_nodes_name_is_asked_for(
    start: Start, kubelet: SimulatedKubelet, server: SimulatedApiServer, configs: Path
) -> None:
    given = [each for each in arguments(server, configs) if not each.startswith("--node-name")]
    async with start(*given) as plugin:
        assert await plugin.ends() == 2
    assert "--config-label: --node-name is missing; expected the node's name" in plugin.log
    assert kubelet is not None
