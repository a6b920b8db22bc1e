"""The simulated kubelet with a bare driver; what it does as the real ones do is tests/node's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.dra_recorder import BOTH, RecordingDriver

from kdp.proto import drahealth_v1_pb2 as health
from kdp_testkit.dra import events, objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraPod, PodStartError, PodStopError
from kdp_testkit.dra.profiles import DraTimings
from kdp_testkit.dra.status import ApiRefused, Kind

DRIVER = "gpu.example.com"
QUICK = DraTimings(wiping_delay=0.2, health_retry=0.1, watcher=0.02, call=5.0)


class Claims:
    """The API server of these tests: claims in a dict, and which slices were deleted."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.wiped: list[str] = []
        self.fails = 0

    def allocate(self, name: str, pod: DraPod) -> None:
        claim = objects.claim(name)
        claim["metadata"]["uid"] = f"uid-{name}"
        claim["status"] = {
            "allocation": objects.allocation([objects.result(DRIVER, name)]),
            "reservedFor": objects.reserved(pod),
        }
        self.claims[name] = claim

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        if method == "DELETE":
            if self.fails:
                self.fails -= 1
                raise ApiRefused(503, "etcd is away")
            self.wiped.append(path.partition("fieldSelector=")[2])
            return {}
        name = path.rpartition("/")[2]
        if "nodes" in path:
            return objects.node(name)
        if name not in self.claims:
            raise Kind("resource.k8s.io", "resourceclaims", "ResourceClaim", namespaced=True).not_found(name)
        return self.claims[name]


@asynccontextmanager
async def kubelet_of(claims: Claims, timings: DraTimings = QUICK) -> AsyncIterator[SimulatedDraKubelet]:
    async with SimulatedDraKubelet(claims.ask, profile="k137", seed=1, timings=timings) as kubelet:
        yield kubelet


async def test_a_driver_is_found_and_called_in_the_first_version_of_its_list() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet:
        old = RecordingDriver(DRIVER, kubelet.root, versions=("v1beta1.DRAPlugin", "v1.DRAPlugin"))
        async with old:
            await kubelet.until_registered(DRIVER)
            user = DraPod(claims={"a": "a"})
            claims.allocate("a", user)
            given = await kubelet.start_pod(user)
            assert given == {"main": (f"{DRIVER}/device=a",)}
            assert old.calls == [("NodePrepareResources", "v1beta1", ("a",))]
            assert old.notified == [(True, "")]
            await kubelet.stop_pod(user)
            assert old.methods() == ["NodePrepareResources a", "NodeUnprepareResources a"]
            assert kubelet.claim("a") is None


async def test_a_call_that_hangs_is_given_up_at_its_deadline() -> None:
    claims = Claims()
    timings = DraTimings(call=0.2, watcher=0.02)
    async with kubelet_of(claims, timings=timings) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = DraPod(claims={"a": "a"})
        claims.allocate("a", user)
        driver.hangs = True
        with pytest.raises(PodStartError, match="code = DeadlineExceeded desc = context deadline exceeded"):
            await kubelet.start_pod(user)
        with pytest.raises(PodStopError, match="NodeUnprepareResources: rpc error: code = DeadlineExceeded"):
            await kubelet.stop_pod(user)


async def test_slices_are_wiped_a_while_after_the_last_connection_and_not_if_it_comes_back() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet:
        driver = RecordingDriver(DRIVER, kubelet.root)
        await driver.start()
        await kubelet.until_registered(DRIVER)
        for instance in kubelet._living().drivers.of(DRIVER):
            instance.connection.sever()
        await kubelet.until_registered(DRIVER)
        claims.fails = 1
        await driver.stop()
        await kubelet.until(lambda: len(claims.wiped) == 2, "the driver's slices are wiped")
        assert claims.wiped == ["spec.nodeName=node0", f"spec.driver={DRIVER},spec.nodeName=node0"]
        wiped = kubelet.events.of(events.SlicesWiped)
        assert [event.error for event in wiped] == [None, "etcd is away", None]
        gone = kubelet.events.of(events.ConnectionChanged)[-1]
        assert not gone.connected or kubelet.events.of(events.DriverGone)
        assert wiped[1].time - kubelet.events.of(events.DriverGone)[0].time >= 0.15


async def test_the_end_of_a_stream_forgets_all_health_of_the_driver() -> None:
    claims = Claims()
    timings = DraTimings(health_retry=60, watcher=0.02)
    async with kubelet_of(claims, timings=timings) as kubelet:
        driver = RecordingDriver(DRIVER, kubelet.root, versions=(*BOTH, "v1.DRAResourceHealth"))
        report = health.NodeWatchResourcesResponse()
        device = report.devices.add(health=1).device
        device.pool_name, device.device_name = "pool", "a"
        driver.reports = [report]
        async with driver:
            await kubelet.until_registered(DRIVER)
            user = DraPod(claims={"a": "a"})
            claims.allocate("a", user)
            await kubelet.start_pod(user)
            await kubelet.until(lambda: _of(kubelet, user) == "Healthy", "the device is healthy")
            kubelet.faults.end_health_streams(DRIVER)
            await kubelet.until(lambda: _of(kubelet, user) == "Unknown", "nothing is known of it")


def _of(kubelet: SimulatedDraKubelet, user: DraPod) -> str:
    return kubelet.health(user)["main"]["claim:a"][f"{DRIVER}/device=a"][0]
