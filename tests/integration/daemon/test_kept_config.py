"""A bad edit of the configuration: it must not wait for the next restart to take the plugin down."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from pathlib import Path

import anyio
import pytest
from tests.waiting import until

from kdp.kubelet import KubeletPaths
from kdp.testing import SimulatedKubelet
from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from ..dra.helpers import SLICES
from .test_process import RESOURCE, Start, program

GOOD = "set: {count: 3}\n"
BAD = "set: {count: one}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def write(path: Path, text: str) -> None:
    path.write_text(text)


def kept(tmp_path: Path) -> Path:
    [found] = (tmp_path / "state").glob("config-*.json")
    return found


async def test_a_bad_edit_is_no_time_bomb_for_the_next_restart(
    start: Start, kubelet: SimulatedKubelet, config: Path, tmp_path: Path
) -> None:
    write(config, GOOD)
    arguments = (program(), "W", "--config", str(config), "--http", "127.0.0.1:0")
    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        write(config, BAD)
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("the previous configuration stays in force")
        status, body = await plugin.readyz()
        assert status == 200
        assert body["configuration"]["state"] == "rejected"
        assert "'one' does not fit" in body["configuration"]["reason"]
        since = body["configuration"]["since"]
        assert since.endswith("+00:00")
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("the previous configuration stays in force", times=2)
        assert (await plugin.readyz())[1]["configuration"]["since"] == since
        write(config, "set: {count: two}\n")  # another mistake, with a time of its own
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("the previous configuration stays in force", times=3)
        newest = (await plugin.readyz())[1]["configuration"]
        assert "'two' does not fit" in newest["reason"]
        write(config, BAD)
        await plugin.stop()
    assert stat.S_IMODE(kept(tmp_path).stat().st_mode) == 0o600

    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        line = await plugin.says("the last good configuration is in force")
        assert "WARNING" in line
        assert "'one' does not fit" in line
        status, body = await plugin.readyz()
        assert status == 200
        assert body["ready"]
        assert body["configuration"]["state"] == "rejected"
        write(config, "set: {count: 4}\n")
        plugin.process.send_signal(signal.SIGHUP)
        await kubelet.until(allocatable={RESOURCE: 4})
        await plugin.says("health probes at", times=2)


async def test_an_address_that_is_taken_is_rejected_and_no_time_bomb(
    start: Start, kubelet: SimulatedKubelet, config: Path
) -> None:
    """The probes went out, the edit was kept as the last good one, and the next start ended with it."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        busy, own = (each.getsockname()[1] for each in (taken, free))
        free.close()
        write(config, f"http: 127.0.0.1:{own}\nset: {{count: 3}}\n")
        arguments = (program(), "W", "--config", str(config))
        async with start(*arguments) as plugin:
            await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
            write(config, f"http: 127.0.0.1:{busy}\nset: {{count: 3}}\n")
            plugin.process.send_signal(signal.SIGHUP)
            await plugin.says("the previous configuration stays in force")
            await plugin.says("connected to the kubelet", times=2)
            status, body = await plugin.readyz()
            assert status == 200
            assert body["configuration"]["state"] == "rejected"
            assert f"127.0.0.1:{busy}" in body["configuration"]["reason"]
            await plugin.stop()
        async with start(*arguments) as plugin:  # which did end with it
            await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
            await plugin.says("the last good configuration is in force, because the new one is bad: http address")
            assert (await plugin.readyz())[1]["configuration"]["state"] == "rejected"
            await plugin.stop()
        async with start(*arguments, "--strict-config") as plugin:
            assert await plugin.ends() == 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("release-policy: scrub\n", "scrub"),
        ("mode: dra\nnode-name: n\nkubeconfig: /nonexistent\n", "/nonexistent"),
    ],
    ids=["policy", "mode"],
)
async def test_an_edit_that_only_serving_refuses_ended_the_plugin(
    start: Start, kubelet: SimulatedKubelet, config: Path, edit: str, words: str
) -> None:
    """At once, by SIGHUP; and each restart after that, although a good configuration was kept."""
    write(config, GOOD)
    arguments = (program(), "W", "--config", str(config), "--http", "127.0.0.1:0")
    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        await until(lambda: any(config.parent.glob("state/config-*.json")), "the configuration is kept")
        write(config, GOOD + edit)
        plugin.process.send_signal(signal.SIGHUP)
        assert words in await plugin.says("the previous configuration stays in force")
        await plugin.says("connected to the kubelet", times=2)
        assert words in (await plugin.readyz())[1]["configuration"]["reason"]
        await plugin.stop()
    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        assert words in await plugin.says("the last good configuration is in force")
        write(config, "set: {count: 2}\n")
        plugin.process.send_signal(signal.SIGHUP)
        await kubelet.until(allocatable={RESOURCE: 2})
        await plugin.stop()


async def test_an_edit_that_only_serving_refuses_leaves_a_drivers_devices_published(
    start: Start, config: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A pod's start must not depend on an edit, and neither must a restart of the driver."""
    root = tmp_path_factory.mktemp("d")  # short: a socket's whole path has 107 bytes
    async with SimulatedApiServer() as server, SimulatedDraKubelet(server.ask, root) as dra_kubelet:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        kubeconfig = write_kubeconfig(tmp_path, server.url)
        given = f"mode: dra\nnode-name: node0\nkubeconfig: {kubeconfig}\ncdi-dir: {tmp_path}/cdi\n"
        write(config, given + GOOD)
        arguments = (program(), "W", "--config", str(config), "--http", "127.0.0.1:0")
        paths = KubeletPaths.simulated(dra_kubelet.root)
        directories = {
            "KDP_KUBELET_ROOT": str(dra_kubelet.root),
            "KDP_PLUGINS_REGISTRY_DIR": str(paths.plugins_registry_dir),
        }
        async with start(*arguments, **directories) as plugin:
            await published(server, 3)
            await until(lambda: any(config.parent.glob("state/config-*.json")), "the configuration is kept")
            write(config, given.replace("kubeconfig: ", "kubeconfig: /nonexistent") + GOOD)
            plugin.process.send_signal(signal.SIGHUP)
            assert "/nonexistent" in await plugin.says("the previous configuration stays in force")
            await plugin.says("registered with the kubelet", times=2)
            assert "/nonexistent" in (await plugin.until_readyz(200))["configuration"]["reason"]
            await published(server, 3)
            await plugin.stop()
        async with start(*arguments, **directories) as plugin:
            assert "/nonexistent" in await plugin.says("the last good configuration is in force")
            await published(server, 3)
            write(config, given + "set: {count: 2}\n")
            plugin.process.send_signal(signal.SIGHUP)
            await published(server, 2)
            await plugin.stop()


async def published(server: SimulatedApiServer, count: int) -> None:
    """Wait until the slices have so many devices."""
    with anyio.fail_after(PATIENCE):
        while True:
            items = (await server.ask("GET", SLICES))["items"]
            if sum(len(each["spec"].get("devices", ())) for each in items) == count:
                return
            await anyio.sleep(0.01)


async def test_what_discovery_refuses_is_not_kept(
    start: Start, kubelet: SimulatedKubelet, config: Path, tmp_path: Path
) -> None:
    """A number of devices of which no device can be made was the last good one at once."""
    write(config, GOOD)
    refusing = (
        "def discover(self):\n    return [kdp.Device(id=f'w{6 // self.count}-{i}') for i in range(self.count or 1)]"
    )
    arguments = (program(refusing), "W", "--config", str(config), "--http", "127.0.0.1:0")
    async with start(*arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        write(config, "set: {count: 0}\n")
        await until(lambda: any((tmp_path / "state").glob("config-*.json")), "the configuration is kept")
        before = kept(tmp_path).read_bytes()
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("ZeroDivisionError")
        assert kept(tmp_path).read_bytes() == before
        write(config, "set: {count: 1}\n")
        plugin.process.send_signal(signal.SIGHUP)
        await kubelet.until(allocatable={RESOURCE: 1})
        await until(lambda: b"count: 1" in kept(tmp_path).read_bytes(), "the newest configuration is kept")
        await plugin.stop()


@pytest.mark.parametrize("way", ["strict", "damaged"])
async def test_what_was_kept_is_not_used(
    start: Start, kubelet: SimulatedKubelet, config: Path, tmp_path: Path, way: str
) -> None:
    write(config, GOOD)
    async with start(program(), "W", "--config", str(config)) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        await plugin.stop()
    more: list[str] = []
    if way == "strict":
        more = ["--strict-config"]
    else:
        write(kept(tmp_path), "{")
    write(config, BAD)
    async with start(program(), "W", "--config", str(config), *more) as plugin:
        assert await plugin.ends() == 2
    assert len(plugin.lines) == 1 + (way == "damaged")
    assert ("the kept configuration" in plugin.log) == (way == "damaged")


async def test_a_state_directory_that_only_the_file_names_had_nothing_to_fall_back_on(
    start: Start, kubelet: SimulatedKubelet, config: Path, tmp_path: Path
) -> None:
    directory = f"state-dir: {tmp_path}/of-the-file  # on the node's disk\n"
    write(config, directory + GOOD)
    arguments = (program(), "W", "--config", str(config))
    async with start(*arguments, KDP_STATE_DIR="") as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        await plugin.stop()
    [_] = (tmp_path / "of-the-file").glob("config-*.json")
    assert not [*(tmp_path / "state").glob("config-*.json")]
    write(config, f"{directory}set: {{count: 3\n")  # not even YAML
    async with start(*arguments, KDP_STATE_DIR="") as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        await plugin.says("the last good configuration is in force")
        await plugin.stop()


async def test_a_configuration_from_a_pipe_stays_and_is_not_written_down(
    start: Start, kubelet: SimulatedKubelet, config: Path, tmp_path: Path
) -> None:
    """``--config <(sops -d x.yaml)``: what was decrypted for the process stays in the process."""
    os.mkfifo(config)
    async with start(program(), "W", "--config", str(config)) as plugin:
        threading.Thread(target=write, args=[config, GOOD], daemon=True).start()
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 3})
        plugin.process.send_signal(signal.SIGHUP)
        line = await plugin.says("c.yaml is a pipe, which can be read once: its configuration stays")
        assert "WARNING" in line
        await anyio.Path(config).unlink()
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("its configuration stays", times=2)
        assert (await plugin.stop())[0] == 0
    assert "the previous configuration stays" not in plugin.log
    assert not [*(tmp_path / "state").glob("config-*.json")]
