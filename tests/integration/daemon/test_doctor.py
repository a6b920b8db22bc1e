"""``kdp doctor`` beside a real process and a kubelet: right answers, in time, with little memory."""

from __future__ import annotations

import json
import os
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
