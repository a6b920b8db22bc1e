"""``/metrics`` of a DRA driver, between the simulated API server and the simulated kubelet."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.dra.claims.claims_world import Widgets

from kdp.cli.asking import ask
from kdp.operations.series import SERIES
from kdp_testkit.patience import PATIENCE

from .helpers import DRIVER, serving

OF_DRIVER = {"driver_name": DRIVER}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(path: Path) -> Samples:
    code, text = await anyio.to_thread.run_sync(ask, str(path), "/metrics")
    families = text_string_to_metric_families(text) if code == 0 else ()
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


async def shows(path: Path, name: str, value: float, **labels: str) -> None:
    found: Samples = {}
    try:
        with anyio.fail_after(PATIENCE):
            while found.get((name, frozenset(labels.items()))) != value:
                await anyio.sleep(0.05)
                found = await samples(path)
    except TimeoutError:
        raise AssertionError(f"{name}{labels} is not {value:g} but:\n{found}") from None


async def test_each_series_of_a_driver_shows_what_happened(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("d")
    own = folder / "own.sock"
    async with serving(folder, Widgets("w0", "w1"), socket=own, metrics="on") as driver:
        await shows(own, "kdp_registered", 1, **OF_DRIVER)
        await shows(own, "kdp_resource_slices", 1, **OF_DRIVER)
        await shows(own, "kdp_published_devices", 2, **OF_DRIVER)
        await shows(own, "kdp_publication_age_seconds", 0, **OF_DRIVER)
        await shows(own, "kdp_devices", 2, health="healthy", **OF_DRIVER)
        await shows(own, "kdp_not_ready", 0, cause="publication", **OF_DRIVER)
        await shows(own, "kdp_not_ready", 0, cause="obstacle", **OF_DRIVER)
        for directory in ("plugins", "claims", "cdi", "state"):
            await shows(own, "kdp_directory_writable", 1, directory=directory)
        shutil.rmtree(folder / "cdi", ignore_errors=True)
        (folder / "cdi").touch()
        await shows(own, "kdp_not_ready", 1, cause="obstacle", **OF_DRIVER)
        await shows(own, "kdp_directory_writable", 0, directory="cdi")
        (folder / "cdi").unlink()
        await shows(own, "kdp_not_ready", 0, cause="obstacle", **OF_DRIVER)
        host = driver.server.url.removeprefix("https://").removeprefix("http://")
        await shows(own, "rest_client_requests_total", 1, code="201", host=host, method="POST")
        await shows(own, "kdp_claims_prepared", 0, **OF_DRIVER)

        uid = await driver.claim("c", "w0")
        prepare, unprepare = {"operation": "NodePrepareResources"}, {"operation": "NodeUnprepareResources"}
        await driver.call("NodePrepareResources", "c", uid)
        await shows(own, "kdp_claims_prepared", 1, **OF_DRIVER)
        await shows(own, "kdp_operations_total", 1, result="ok", **prepare, **OF_DRIVER)
        await driver.call("NodePrepareResources", "c", "another-uid")
        await shows(own, "kdp_operations_total", 1, result="failed", **prepare, **OF_DRIVER)
        await shows(own, "kdp_operation_duration_seconds_count", 2, **prepare, **OF_DRIVER)
        await driver.call("NodeUnprepareResources", "c", uid)
        await shows(own, "kdp_claims_prepared", 0, **OF_DRIVER)
        await shows(own, "kdp_operations_total", 1, result="ok", **unprepare, **OF_DRIVER)

        names = {name.partition("_bucket")[0] for name, _ in await samples(own)}
        assert {each.name for each in SERIES if each.modes in ("kubelet", "dra", "driver")} <= names
        assert not {each.name for each in SERIES if each.modes in ("device-plugin", "pods")} & names
