"""Both simulations of DRA against the real things: the same scenario, the same observation.

The API server is kube-apiserver of the cluster's version, the kubelet that of the cluster with containerd, with a bare
driver of our own. And a rule of the simulation that is broken is found by the same comparison.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.dra_recorder import RecordingDriver

from kdp_testkit.dra import objects
from kdp_testkit.dra.claims import SKIPPING, ClaimCache, ClaimEntry
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraPod, PodStartError
from kdp_testkit.dra.profiles import PROFILES, DraTimings
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.dra.status import ApiRefused, Kind
from kdp_testkit.dra.store import Store
from kdp_testkit.patience import PATIENCE

from .conftest import MakeCluster, Namespace
from .dra_manager_scenarios import until
from .dra_scenarios import (
    DRIVER,
    Node,
    Refused,
    api_observations,
    claim_observations,
    kubelet_observations,
    skipping_observations,
)
from .nodekit import Cluster
from .nodekit.cluster import ApiError
from .nodekit.image import STAY
from .nodekit.machine import IMAGE

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


def _result(name: str, skips: Sequence[str]) -> dict[str, Any]:
    more: dict[str, Any] = {"skipNodeOperations": list(skips)} if skips else {}
    return objects.result(DRIVER, name, **more)


class RealNode:
    """Pods on the cluster's node, past the scheduler, with claims that the test allocates."""

    def __init__(self, namespace: Namespace, driver: RecordingDriver) -> None:
        self._cluster = namespace.cluster
        self._namespace = namespace.name
        self._driver = driver

    async def make_claim(self, name: str, skips: Sequence[str] = ()) -> None:
        path = CLAIMS.format(self._namespace)
        claim = await self._cluster.api("POST", path, objects.claim(name, namespace=self._namespace))
        claim["status"] = {"allocation": objects.allocation([_result(name, skips)])}
        await self._cluster.api("PUT", f"{path}/{name}/status", claim)

    async def _put(self, pod: str, *claims: str) -> None:
        """Make a pod as a scheduler does: what is not reserved for it when the kubelet sees it waits for a minute."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        made = await self._cluster.api(
            "POST",
            path,
            {
                "metadata": {"name": pod},
                "spec": {
                    "schedulerName": "this-test",
                    "terminationGracePeriodSeconds": 1,
                    "restartPolicy": "Never",
                    "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                    "containers": [
                        {
                            "name": "main",
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "command": ["/bin/sh", "-c", f"env | grep ^DEVICE_ | sort; echo told; {STAY}"],
                            "resources": {"claims": [{"name": claim} for claim in claims]},
                        }
                    ],
                },
            },
        )
        reference = {"resource": "pods", "name": pod, "uid": made["metadata"]["uid"]}
        for name in claims:
            await self._reserve(name, reference)
        target = {"apiVersion": "v1", "kind": "Node", "name": "node0"}
        await self._cluster.api("POST", f"{path}/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    async def _reserve(self, name: str, reference: dict[str, Any]) -> None:
        path = f"{CLAIMS.format(self._namespace)}/{name}"
        for _ in range(20):
            claim = await self._cluster.api("GET", path)
            users = claim["status"].setdefault("reservedFor", [])
            if reference in users:  # the controller was first
                return
            users.append(reference)
            try:
                await self._cluster.api("PUT", f"{path}/status", claim)
            except ApiError as error:
                if error.code != 409:
                    raise
                continue
            return

    async def start(self, pod: str, *claims: str) -> list[str]:
        await self._put(pod, *claims)
        await self._cluster.until_pod(pod, "Running", namespace=self._namespace, seconds=120.0)
        said = await self._cluster.until_said(pod, "told", namespace=self._namespace)
        return [line.partition("=")[2] for line in said.splitlines() if line.startswith("DEVICE_")]

    async def fails(self, pod: str, *claims: str) -> str:
        await self._put(pod, *claims)
        found: list[str] = []

        async def is_told() -> bool:
            events = await self._cluster.list("v1/events", namespace=self._namespace)
            found[:] = [
                event["message"]
                for event in events
                if event["involvedObject"]["name"] == pod and event["reason"] == "FailedPrepareDynamicResources"
            ]
            return bool(found)

        await self._cluster.until(is_told, f"pod {pod} is told why it does not start", seconds=180.0, every=0.2)
        return found[0]

    async def stop(self, pod: str) -> None:
        await self._cluster.delete("v1/pods", pod, namespace=self._namespace)

    async def restart(self) -> None:
        told = len(self._driver.notified)
        await self._cluster.restart()
        await self._cluster.until(lambda: len(self._driver.notified) > told, "the driver is registered again")


class SimulatedNode:
    """The same with both simulations."""

    def __init__(self, server: SimulatedApiServer, kubelet: SimulatedDraKubelet, driver: RecordingDriver) -> None:
        self._server = server
        self._kubelet = kubelet
        self._driver = driver
        self._pods: dict[str, DraPod] = {}

    async def make_claim(self, name: str, skips: Sequence[str] = ()) -> None:
        path = CLAIMS.format("default")
        claim = await self._server.ask("POST", path, objects.claim(name))
        claim["status"] = {"allocation": objects.allocation([_result(name, skips)])}
        await self._server.ask("PUT", f"{path}/{name}/status", claim)

    async def _put(self, pod: str, *claims: str) -> DraPod:
        made = self._pods[pod] = DraPod(name=pod, claims={claim: claim for claim in claims})
        for name in claims:
            path = f"{CLAIMS.format('default')}/{name}"
            claim = await self._server.ask("GET", path)
            claim["status"].setdefault("reservedFor", []).extend(objects.reserved(made))
            await self._server.ask("PUT", f"{path}/status", claim)
        return made

    async def start(self, pod: str, *claims: str) -> list[str]:
        given = await self._kubelet.start_pod(await self._put(pod, *claims))
        return sorted(each.partition("=")[2] for each in given["main"])

    async def fails(self, pod: str, *claims: str) -> str:
        with pytest.raises(PodStartError) as failed:
            await self._kubelet.start_pod(await self._put(pod, *claims))
        return str(failed.value)

    async def stop(self, pod: str) -> None:
        await self._kubelet.stop_pod(self._pods.pop(pod))

    async def restart(self) -> None:
        told = len(self._driver.notified)
        await self._kubelet.restart()
        await self._kubelet.until_registered(DRIVER)
        assert await until(lambda: len(self._driver.notified) > told, PATIENCE)


async def simulated_kubelet_observations(
    play: Callable[[Node, RecordingDriver], Awaitable[dict[str, Any]]] = kubelet_observations, *gates: str
) -> dict[str, Any]:
    profile = attrs.evolve(PROFILES["k137"], gates=PROFILES["k137"].gates | set(gates))
    async with SimulatedApiServer(profile) as server:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        async with (
            SimulatedDraKubelet(server.ask, profile=profile, timings=DraTimings(watcher=0.05)) as kubelet,
            RecordingDriver(DRIVER, kubelet.root) as driver,
        ):
            await kubelet.until_registered(DRIVER)
            assert await until(lambda: driver.notified, PATIENCE)
            return await play(SimulatedNode(server, kubelet, driver), driver)


async def simulated_ask(server: SimulatedApiServer) -> Any:
    async def ask(method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            return await server.ask(method, path, body)
        except ApiRefused as refused:
            raise Refused(refused.as_json()) from None

    return ask


def real_ask(cluster: Cluster) -> Any:
    async def ask(method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            return await cluster.api(method, path, body)
        except ApiError as error:
            raise Refused(json.loads(str(error).partition(": ")[2])) from None

    return ask


def differences(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    """Return what was not seen equally: real, then simulated."""
    keys = real.keys() | simulated.keys()
    return {key: (real.get(key), simulated.get(key)) for key in keys if real.get(key) != simulated.get(key)}


async def simulated_api_observations() -> dict[str, Any]:
    async with SimulatedApiServer() as server:
        ask = await simulated_ask(server)
        return {**await api_observations(ask), **await claim_observations(ask, "default")}


@pytest.fixture
async def real_api(namespace: Namespace) -> dict[str, Any]:
    ask = real_ask(namespace.cluster)
    return {**await api_observations(ask), **await claim_observations(ask, namespace.name)}


async def test_the_api_servers_answer_the_same(real_api: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(real_api) > 30
    assert differences(real_api, await simulated_api_observations()) == {}
    with monkeypatch.context() as patch:
        patch.setattr(Kind, "modified", Kind.exists)
        assert "change what has changed" in differences(real_api, await simulated_api_observations())
    replace = Store.replace

    def always_writes(self: Store, kind: Kind, namespace: str, name: str, item: Any, **more: Any) -> dict[str, Any]:
        item.setdefault("metadata", {}).setdefault("annotations", {})["touched"] = "yes"
        return replace(self, kind, namespace, name, item, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "replace", always_writes)
        assert "the same again is no write" in differences(real_api, await simulated_api_observations())


async def test_the_kubelets_do_the_same(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = namespace.cluster
    root = cluster.work / "lib/kubelet"
    driver = RecordingDriver(DRIVER, root, seen_at=Path("/var/lib/kubelet"), cdi=cluster.cdi)
    async with driver:
        await cluster.until(lambda: driver.notified, "the driver is registered")
        real = await kubelet_observations(RealNode(namespace, driver), driver)
    assert differences(real, await simulated_kubelet_observations()) == {}
    release = ClaimCache.release

    def always_releases(self: ClaimCache, pod_uid: str, keys: Any) -> Any:
        for entry in self.entries.values():
            entry.pods &= {pod_uid}
        return release(self, pod_uid, keys)

    with monkeypatch.context() as patch:
        patch.setattr(ClaimCache, "release", always_releases)
        found = differences(real, await simulated_kubelet_observations())
        assert "shared, first ends" in found


async def test_the_kubelets_leave_out_the_same_calls(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await make_cluster(feature_gates={SKIPPING: True})
    root = cluster.work / "lib/kubelet"
    driver = RecordingDriver(DRIVER, root, seen_at=Path("/var/lib/kubelet"), cdi=cluster.cdi)
    async with cluster.namespace() as name, driver:
        await cluster.until(lambda: driver.notified, "the driver is registered")
        real = await skipping_observations(RealNode(Namespace(cluster, name), driver), driver)
    assert real["all"] == ([], [])
    assert differences(real, await simulated_kubelet_observations(skipping_observations, SKIPPING)) == {}
    monkeypatch.setattr(ClaimEntry, "called", lambda self, _: list(self.drivers))
    assert {"all", "both", "unprepare"} <= differences(
        real, await simulated_kubelet_observations(skipping_observations, SKIPPING)
    ).keys()
