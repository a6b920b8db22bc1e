"""``kdp doctor`` beside a real process and a kubelet: right answers, in time, with little memory."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kdp.testing import SimulatedKubelet

from .test_status import MEMORY, PROGRAM, RESOURCE

Start = Callable[..., AbstractAsyncContextManager[Any]]
Figure = Callable[[str, float, str], None]


def command(kubelet: SimulatedKubelet, tmp_path: Path) -> list[str]:
    paths = kubelet.paths
    places = {
        "--device-plugin-dir": paths.device_plugin_dir,
        "--pod-resources-dir": paths.pod_resources_dir,
        "--state-dir": tmp_path / "state",
        "--cdi-dir": tmp_path / "cdi",
    }
    flags = [str(each) for pair in places.items() for each in pair]
    return [sys.executable, "-m", "kdp", "doctor", *flags, "--format", "json"]


async def doctor(kubelet: SimulatedKubelet, tmp_path: Path) -> dict[str, str]:
    done = await anyio.run_process(command(kubelet, tmp_path), check=False)
    return {each["id"]: f"{each['answer']}: {each['seen']}" for each in json.loads(done.stdout)["questions"]}


async def test_a_plugin_in_order(start: Start, kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        found = await doctor(kubelet, tmp_path)
    about = ("kubelet-directory", "kubelet-socket", "kubelet-answers", "pod-resources", "plugin", "plugin-ready")
    of_devices = ("resource-registered", "resource-name", "resource-served-elsewhere", "resource-allocatable")
    for name in (*about, *of_devices, "device-nodes", "state-directory", "version"):
        assert found[name].startswith("ok: "), (name, found[name])
    assert found["device-nodes"] == "ok: 1 device node there: /dev/null"


@pytest.mark.parametrize("where", ["pod", "node"])
async def test_an_ordinary_run_had_25_answers_that_were_not_known(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, where: str
) -> None:
    environment = {**os.environ, **({"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if where == "pod" else {})}
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        done = await anyio.run_process(command(kubelet, tmp_path), check=False, env=environment)
    questions = json.loads(done.stdout)["questions"]
    assert not [each for each in questions if each["answer"] in ("not known", "failed")]
    assert done.returncode == 0


async def test_it_took_42_mib_where_the_kubelet_has_a_pod_resources_api(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    async with start(PROGRAM):
        await kubelet.until(allocatable={RESOURCE: 2})
        whole = command(kubelet, tmp_path)
        assert kubelet.paths.pod_resources_socket.is_socket()
        loaded = await anyio.run_process([whole[0], "-X", "importtime", *whole[1:]], check=False)
        modules = {line.rpartition("|")[2].strip() for line in loaded.stderr.decode().splitlines()}
        assert not modules & {"grpc", "rich", "asyncio", "yaml", "anyio"}
        measured = await anyio.run_process([sys.executable, "-c", MEMORY, *whole])
        figure(
            "kdp doctor beside a plugin with a pod-resources API, of 25 MiB",
            int(measured.stdout.split()[1]) / 1024,
            "MiB",
        )


REFUSED = """
import kdp


class Refused(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, token: str, note: str = "") -> None:
        self.told = f"server refused {token}, {note}"

    def discover(self):
        return [kdp.Device(id="w0", health=kdp.Health.unhealthy(self.told))]
"""


class Bundled:
    """A bundle of the doctor: what it printed, and all bytes of the archive."""

    def __init__(self, listed: str, held: bytes) -> None:
        self.listed = listed
        self.held = held


async def bundled(kubelet: SimulatedKubelet, tmp_path: Path) -> Bundled:
    (tmp_path / "host").mkdir(exist_ok=True)
    file = tmp_path / "b.tar.gz"
    whole = [*command(kubelet, tmp_path)[:-2], "--host-root", str(tmp_path / "host"), "--bundle", str(file)]
    done = await anyio.run_process(whole, cwd=tmp_path.parent)
    return Bundled(done.stdout.decode(), gzip.decompress(file.read_bytes()))


NOT_READ = "not read, so a secret of it may be left in a log or reason: "


@pytest.mark.parametrize("how", ["link", "variable", "relative"])
async def test_the_secret_of_a_living_plugins_configuration_file_was_in_the_bundle(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, how: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("set: {token: Kx9-hunter2-77ab, note: 'an Ab-12 that is free text'}\n")
    variables: dict[str, str] = {}
    arguments = {
        "link": ["--config", str(tmp_path / "link.yaml")],
        "relative": ["--config=c.yaml"],
    }.get(how, [])
    (tmp_path / "link.yaml").symlink_to(config)
    if how == "variable":
        variables["KDP_CONFIG"] = str(config)
    async with start(REFUSED, "Refused", *arguments, cwd=tmp_path, **variables) as plugin:
        await plugin.says("server refused Kx9-hunter2-77ab, an Ab-12 that is free text")
        made = await bundled(kubelet, tmp_path)
    assert b"server refused ***, ***" in made.held
    assert b"hunter2" not in made.held
    assert b"Ab-12" not in made.held
    assert NOT_READ not in made.listed


@pytest.mark.parametrize("left", ["edited", "damaged", "missing"])
async def test_the_secret_of_the_last_good_configuration_was_in_the_bundle(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, left: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("set: {token: Kx9-hunter2-77ab}\n")
    async with start(REFUSED, "Refused", "--config", str(config)) as plugin:
        await plugin.says("server refused Kx9-hunter2-77ab")
        if left == "missing":
            config.unlink()
        else:
            config.write_text("set: {token: [Zz8-hunter3-66cd" + ("]}\n" if left == "edited" else "\n"))
        plugin.process.send_signal(signal.SIGHUP)
        refused = await plugin.says("the previous configuration stays in force")
        made = await bundled(kubelet, tmp_path)
    assert "hunter3" not in refused
    assert ("set.token in" in refused, "['***'] does not fit" in refused) == (left == "edited", left == "edited")
    assert b"server refused ***" in made.held
    assert b"hunter" not in made.held
    missing = f"{NOT_READ}{config} of process {plugin.process.pid} (No such file or directory)"
    assert (missing in made.listed) == (left == "missing")
    assert missing.encode() in made.held or left != "missing"


async def test_a_configuration_that_was_a_pipe_is_listed_as_not_read(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    """Nobody can read a pipe twice, so the promise does not hold."""
    shell = ["bash", "-c", 'exec "$0" "$@" --config <(echo "set: {token: Kx9-hunter2-77ab}")', sys.executable]
    async with start(REFUSED, "Refused", under=shell) as plugin:
        await plugin.says("server refused Kx9-hunter2-77ab")
        made = await bundled(kubelet, tmp_path)
    assert f"{NOT_READ}/dev/fd/63 of process {plugin.process.pid} (" in made.listed
