"""``/metrics`` of a DRA driver, between the simulated API server and the simulated kubelet."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.dra.claims.claims_world import Widgets
from tests.waiting import until

from kdp.command.asking import ask
from kdp.dra.holders import ClaimHolders
from kdp.dra.names import device_name
from kdp.operations.series import SERIES
from kdp.proto import podresources_v1_pb2 as pb
from kdp_testkit.patience import PATIENCE

from .helpers import DRIVER, serving

OF_DRIVER = {"driver_name": DRIVER}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(path: Path) -> Samples:
    code, text = await anyio.to_thread.run_sync(ask, str(path), "/metrics")
    families = text_string_to_metric_families(text) if code == 0 else ()
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@asynccontextmanager
async def answering(socket: Path, answer: Callable[[], bytes]) -> AsyncIterator[None]:
    """Answer List of the pod-resources API at a socket."""

    async def listed(_: bytes, __: Any) -> bytes:
        return answer()

    socket.parent.mkdir(exist_ok=True)
    handlers: dict[str, Any] = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)])
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def shows(path: Path, name: str, value: float, **labels: str) -> None:
    found: Samples = {}
    try:
        with anyio.fail_after(PATIENCE):
            while found.get((name, frozenset(labels.items()))) != value:
                await anyio.sleep(0.05)
                found = await samples(path)
    except TimeoutError:
        raise AssertionError(f"{name}{labels} is not {value:g} but:\n{found}") from None


async def test_each_series_of_a_driver_shows_what_happened(folder: Path) -> None:
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


async def test_a_device_is_named_with_each_container_that_has_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``--metrics pods`` named none with DRA."""
    own, long_id = folder / "own.sock", "GPU-" + "a" * 56
    claimed = [
        pb.DynamicResource(
            claim_name="c",
            claim_namespace="default",
            claim_resources=[
                pb.ClaimResource(driver_name=driver, pool_name=pool, device_name=device_name(device_id))
                for driver, pool, device_id in (
                    (DRIVER, "node0", long_id),
                    (DRIVER, "elsewhere", "w1"),
                    ("x", "node0", "w1"),
                )
            ],
        )
    ]
    containers = [pb.ContainerResources(name=name, dynamic_resources=claimed) for name in ("main", "side")]
    pods = [pb.PodResources(name="user", namespace="default", containers=containers)]
    answer = pb.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
    async with (
        answering(folder / "pod-resources" / "kubelet.sock", lambda: answer),
        serving(folder, Widgets(long_id, "w1"), socket=own, metrics="pods"),
    ):
        for container in ("main", "side"):
            at = {"namespace": "default", "pod": "user", "container": container}
            await shows(own, "kdp_device_allocation", 1, device=long_id, **at, **OF_DRIVER)
        found = [labels for name, labels in await samples(own) if name == "kdp_device_allocation"]
        assert len(found) == 2
    assert "no metric names the pods" not in caplog.text


async def test_a_kubelet_without_the_socket_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holders = ClaimHolders(tmp_path / "kubelet.sock", "node0", period=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holders.run)
        await until(lambda: "no metric names the pods of claims; mount" in caplog.text)
        assert holders.of(DRIVER, ["w0"]) is None
        async with answering(tmp_path / "kubelet.sock", bytes):
            await until(lambda: holders.of(DRIVER, ["w0"]) is not None)
        tasks.cancel_scope.cancel()
    assert caplog.text.count("no metric names") == 1
