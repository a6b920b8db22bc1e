"""``/metrics`` of a plugin's process: each series shows what happened on a node."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.fetching import fetch

from kdp.command.asking import ask
from kdp.testing import AdmissionError, Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

Figure = Callable[[str, float, str], None]
Start = Callable[..., AbstractAsyncContextManager[Any]]

RESOURCE = "example.com/gpu"
GPU = {"resource_name": RESOURCE}

PROGRAM = """
import pathlib, threading, time
import kdp

HERE = pathlib.Path(__file__).parent

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"
    policy = "first"
    measurements = (kdp.Measurement("utilization", unit="ratio", help="Share of time in use."),)
    measure_interval = 0.05

    def discover(self):
        if (HERE / "hang").exists():
            threading.Event().wait()
        return [kdp.Device(id=f"gpu-{i}") for i in range(8)]

    def watch(self, report):
        is_ill = False
        while not report.stopping.wait(0.02):
            if (HERE / "ill").exists() != is_ill:
                is_ill = not is_ill
                if is_ill:
                    report.fault("gpu-3", "XID 79", kind="xid")
                else:
                    report.clear("gpu-3", kind="xid")
            if (HERE / "block").exists():
                report.rescan()

    def allocate(self, devices):
        if (HERE / "refuse").exists():
            raise kdp.AllocationError("not today")
        return devices.edits()

    def measure(self):
        return {"gpu-0": {"utilization": 0.25}}

if __name__ == "__main__":
    kdp.run(Gpus())
"""


class NoAnswerError(Exception):
    """Nobody answers at the socket."""


class Scraper:
    """Asks a plugin for its metrics until they say something."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def text(self) -> str:
        code, body = await to_thread.run_sync(ask, str(self._path), "/metrics")
        if code:
            raise NoAnswerError(body)
        return body

    async def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        families = text_string_to_metric_families(await self.text())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    async def shows(self, name: str, value: float, **labels: str) -> None:
        """Wait for a value. While the plugin starts or reads its configuration again, nobody answers."""
        seen: Mapping[tuple[str, frozenset[tuple[str, str]]], float] = {}
        try:
            with anyio.fail_after(PATIENCE):
                while True:
                    with contextlib.suppress(NoAnswerError):
                        seen = await self.samples()
                        if seen.get((name, frozenset(labels.items()))) == value:
                            return
                    await anyio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{name}{labels} is not {value:g} but:\n{seen}") from None


async def test_each_series_shows_what_happened(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path, figure: Figure
) -> None:
    scraper = Scraper(tmp_path / "own.sock")
    environment = {"KDP_METRICS": "pods", "KDP_SOCKET": str(tmp_path / "own.sock")}
    async with start(PROGRAM, **environment) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-0"))
        [gpu] = admitted.devices(RESOURCE)
        await scraper.shows("kdp_registered", 1, **GPU)
        await scraper.shows("kdp_devices", 8, health="healthy", **GPU)
        await scraper.shows("kdp_registrations_total", 1, result="accepted", **GPU)
        await scraper.shows("kdp_registration_duration_seconds_count", 1, **GPU)
        await scraper.shows("kdp_list_updates_total", 1, **GPU)
        await scraper.shows("kdp_operations_total", 1, operation="Allocate", result="ok", **GPU)
        await scraper.shows("kdp_operation_duration_seconds_count", 1, operation="Allocate", **GPU)
        await scraper.shows("kdp_hook_duration_seconds_count", 1, backend="Gpus", hook="allocate")
        await scraper.shows("kdp_not_ready", 0, cause="kubelet", **GPU)
        await scraper.shows("kdp_release_pending", 0, **GPU)
        pod = {"namespace": "default", "pod": "train-0", "container": "main"}
        empty = dict.fromkeys(pod, "")
        held = pod if gpu == "gpu-0" else empty
        await scraper.shows("kdp_utilization_ratio", 0.25, device="gpu-0", **GPU, **held)
        await scraper.shows("kdp_device_allocation", 1, device=gpu, **GPU, **pod)
        await scraper.shows("kdp_allocated_devices", 1, **GPU)

        (tmp_path / "ill").touch()
        await scraper.shows("kdp_device_faults", 1, kind="xid", **GPU)
        await scraper.shows("kdp_devices", 7, health="healthy", **GPU)
        await scraper.shows("kdp_devices", 1, health="unhealthy", **GPU)
        await scraper.shows("kdp_device_transitions_total", 1, to="unhealthy", kind="xid", **GPU)
        await scraper.shows("kdp_list_updates_total", 2, **GPU)
        (tmp_path / "ill").unlink()
        await scraper.shows("kdp_device_faults", 0, kind="xid", **GPU)
        await scraper.shows("kdp_device_transitions_total", 1, to="healthy", kind="none", **GPU)

        (tmp_path / "refuse").touch()
        with pytest.raises(AdmissionError, match="not today"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await scraper.shows("kdp_operations_total", 1, operation="Allocate", result="refused", **GPU)
        await scraper.shows("kdp_hook_failures_total", 1, backend="Gpus", hook="allocate", reason="refused")

        await scraper.shows("kdp_kubelet_socket", 1, socket="kubelet")
        await scraper.shows("kdp_kubelet_socket", 1, socket="pod-resources")
        await kubelet.stop()
        await scraper.shows("kdp_registered", 0, **GPU)
        await scraper.shows("kdp_not_ready", 1, cause="kubelet", **GPU)
        await scraper.shows("kdp_kubelet_socket", 0, socket="kubelet")
        await kubelet.start()
        await scraper.shows("kdp_registered", 1, **GPU)
        await scraper.shows("kdp_kubelet_restarts_total", 1)
        await scraper.shows("kdp_registrations_total", 2, result="accepted", **GPU)

        found = await scraper.samples()
        assert 0 <= found["kdp_discovery_age_seconds", frozenset({("backend", "Gpus")})] < PATIENCE
        sent = found["kdp_list_last_sent_timestamp_seconds", frozenset(GPU.items())]
        assert abs(sent - time.time()) < 2 * PATIENCE
        assert found["kdp_list_bytes", frozenset(GPU.items())] > 8 * len("gpu-0")
        figure("series of a node with 8 GPUs", sum(name.startswith("kdp_") for name, _ in found), "")
        assert (await plugin.stop())[0] == 0


@pytest.mark.parametrize(("metrics", "status"), [("pods", 421), ("on", 200)])
async def test_metrics_with_names_of_pods_answered_any_name(start: Start, metrics: str, status: int) -> None:
    """DNS rebinding: a page on the Internet has its own name lead to the plugin, and reads it in a browser."""
    async with start(PROGRAM, KDP_METRICS=metrics, KDP_HTTP="127.0.0.1:0") as plugin:
        url = await plugin.url()
        request = urllib.request.Request(f"{url}/metrics", headers={"Host": "evil.example"})  # noqa: S310 - its own
        found, _, _ = await to_thread.run_sync(fetch, request)
        assert found == status
        found, _, _ = await to_thread.run_sync(fetch, f"{url}/metrics")
        assert found == 200


async def test_a_bad_edit_and_a_directory_that_takes_no_file_are_seen(start: Start, tmp_path: Path) -> None:
    scraper = Scraper(tmp_path / "own.sock")
    config, cdi = tmp_path / "c.yaml", tmp_path / "cdi"
    config.write_text(f"metrics: 'on'\ncdi: beside\ncdi-dir: {cdi}\nsocket: {tmp_path}/own.sock\n")
    good = {"hash": hashlib.sha256(config.read_bytes()).hexdigest()[:12]}
    async with start(PROGRAM, "Gpus", "--config", str(config)) as plugin:
        await scraper.shows("kdp_config_rejected", 0)
        await scraper.shows("kdp_config_info", 1, **good)
        for directory in ("plugins", "state", "cdi"):
            await scraper.shows("kdp_directory_writable", 1, directory=directory)
        with config.open("a") as file:
            file.write("poll-interval: soon\n")
        plugin.process.send_signal(signal.SIGHUP)
        await scraper.shows("kdp_config_rejected", 1)
        await scraper.shows("kdp_config_info", 1, **good)
        config.write_text(f"{config.read_text().replace('soon', '60')}")
        mended = {"hash": hashlib.sha256(config.read_bytes()).hexdigest()[:12]}
        shutil.rmtree(cdi, ignore_errors=True)
        cdi.touch()
        plugin.process.send_signal(signal.SIGHUP)
        await scraper.shows("kdp_config_rejected", 0)
        await scraper.shows("kdp_config_info", 1, **mended)
        await scraper.shows("kdp_directory_writable", 0, directory="cdi")
        assert ("kdp_config_info", frozenset(good.items())) not in await scraper.samples()
        assert (await plugin.stop())[0] == 0
