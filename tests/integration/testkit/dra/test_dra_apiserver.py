"""The simulated API server, asked by lightkube's client over HTTP, and in this process."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource
from tests.accounts import Account, with_accounts
from tests.slice_cases import good

from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.rules import json_patched
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.dra.status import ApiRefused
from kdp_testkit.dra.store import KINDS
from kdp_testkit.patience import PATIENCE

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
AT_CLUSTER = ' in API group "resource.k8s.io" at the cluster scope'
IN_DEFAULT = ' in API group "resource.k8s.io" in the namespace "default"'
ONE, TWO = "one", "two"
DRIVER = "gpu.example.com"
Slice: Any = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")


def client_of(server: SimulatedApiServer, token: str = "") -> AsyncClient:
    config = KubeConfig.from_one(cluster=Cluster(server=server.url), user=User(token=token) if token else User())
    return AsyncClient(config=config, trust_env=False)


def a_slice(name: str = "s1") -> dict[str, Any]:
    item = copy.deepcopy(good())
    item["metadata"] = {"name": name}
    return item


@asynccontextmanager
async def both(**settings: Any) -> AsyncIterator[tuple[SimulatedApiServer, AsyncClient]]:
    async with SimulatedApiServer(**settings) as server:
        client = client_of(server)
        try:
            yield server, client
        finally:
            await client.close()


async def test_lightkube_creates_lists_replaces_and_deletes() -> None:
    async with both() as (_, client):
        made = await client.create(Slice(metadata={"generateName": "0-gpu-"}, spec=good()["spec"]))
        assert made.metadata.name.startswith("0-gpu-")
        assert made.metadata.generation == 1
        node = good()["spec"]["nodeName"]
        assert [each.metadata.name async for each in client.list(Slice, fields={"spec.nodeName": node})] == [
            made.metadata.name
        ]
        assert [each async for each in client.list(Slice, fields={"spec.nodeName": "another"})] == []
        stale = copy.deepcopy(made)
        made.spec["pool"]["generation"] += 1
        again = await client.replace(made)
        assert again.metadata.generation == 2
        with pytest.raises(ApiError) as failed:
            await client.replace(stale)
        assert (failed.value.status.code, failed.value.status.reason) == (409, "Conflict")
        same = await client.replace(again)
        assert same.metadata.resourceVersion == again.metadata.resourceVersion, "the same again is no write"
        await client.delete(Slice, made.metadata.name)
        with pytest.raises(ApiError) as failed:
            await client.get(Slice, made.metadata.name)
        assert failed.value.status.message == f'resourceslices.resource.k8s.io "{made.metadata.name}" not found'


async def test_a_watch_tells_what_changes_and_ends_with_410_after_a_compaction() -> None:
    async with both() as (server, client):
        seen: list[tuple[str, str]] = []
        version = str(server.api.store.version)

        async def watch() -> None:
            async for kind, item in client.watch(Slice, resource_version=version):
                seen.append((kind, item.metadata.name))
                if kind == "DELETED":
                    return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await server.ask("POST", SLICES, a_slice())
            changed = await server.ask("GET", f"{SLICES}/s1")
            changed["spec"]["pool"]["generation"] += 1
            await server.ask("PUT", f"{SLICES}/s1", changed)
            server.faults.drop_watches()
            await server.ask("DELETE", f"{SLICES}/s1")
        assert seen == [("ADDED", "s1"), ("MODIFIED", "s1"), ("DELETED", "s1")]
        server.faults.expire_watches()
        with pytest.raises(ApiError) as failed:
            async for _ in client.watch(Slice, resource_version=version):
                pass
        assert failed.value.status.code == 410


async def test_a_dry_run_stores_nothing() -> None:
    async with SimulatedApiServer() as server:
        judged = await server.ask("POST", f"{SLICES}?dryRun=All", good("judged"))
        assert judged["metadata"]["name"] == "judged"
        assert (await server.ask("GET", SLICES))["items"] == []
        stored = await server.ask("POST", SLICES, good("stored"))
        changed = copy.deepcopy(stored)
        changed["spec"]["devices"] = []
        await server.ask("PUT", f"{SLICES}/stored?dryRun=All", changed)
        assert (await server.ask("GET", f"{SLICES}/stored"))["spec"]["devices"]


async def test_fields_whose_gate_is_off_are_dropped_without_a_word() -> None:
    settings: dict[str, Any]
    for settings in ({"profile": "k134"}, {"gates": {"DRADeviceTaints": False}}):
        async with SimulatedApiServer(**settings) as server:
            item = a_slice()
            item["spec"]["devices"] = [{"name": "d", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}]
            stored = await server.ask("POST", SLICES, item)
            assert "taints" not in stored["spec"]["devices"][0]


async def test_tokens_and_permissions() -> None:
    async with SimulatedApiServer() as server:
        name = "system:serviceaccount:kube-system:gpu"
        rules = {"resourceslices": "get,list", "resourceclaims": "get", "resourceclaims/status": "update"}
        accounts = with_accounts(server)
        accounts[ONE] = Account.allowed(name, rules, node="node0")
        await server.ask("GET", SLICES, token=ONE)
        for method, path, text in (
            (
                "POST",
                SLICES,
                f'resourceslices.resource.k8s.io is forbidden: User "{name}" cannot create resource "resourceslices"'
                + AT_CLUSTER,
            ),
            (
                "DELETE",
                f"{CLAIMS}/a",
                f'resourceclaims.resource.k8s.io "a" is forbidden: User "{name}" '
                'cannot delete resource "resourceclaims"' + IN_DEFAULT,
            ),
        ):
            with pytest.raises(ApiRefused) as failed:
                await server.ask(method, path, {}, token=ONE)
            assert (failed.value.status, failed.value.message) == (403, text)
        accounts[TWO] = accounts.pop(ONE)
        with pytest.raises(ApiRefused, match="Unauthorized") as unknown:
            await server.ask("GET", SLICES, token=ONE)
        assert unknown.value.status == 401
        await server.ask("GET", SLICES, token=TWO)


@pytest.mark.parametrize(
    ("profile", "verb", "node", "is_taken"),
    [
        ("k134", "", "node0", True),
        ("k137", "", "node0", False),
        ("k137", "associated-node:update", "node1", False),
        ("k137", "arbitrary-node:update", "node1", True),
    ],
)
async def test_since_136_the_status_of_devices_needs_a_permission(
    profile: str, verb: str, node: str, is_taken: bool
) -> None:
    async with SimulatedApiServer(profile) as server:
        await server.ask("POST", CLAIMS, objects.claim("a"))
        claim = await server.ask("GET", f"{CLAIMS}/a")
        claim["status"] = {"allocation": objects.allocation([objects.result(DRIVER, "d0")])}
        claim = await server.ask("PUT", f"{CLAIMS}/a/status", claim)
        rules = {"resourceclaims/status": "update", f"resourceclaims/driver:{DRIVER}": verb}
        with_accounts(server)[ONE] = Account.allowed("system:serviceaccount:a:b", rules, node=node)
        claim["status"]["devices"] = [{"driver": DRIVER, "pool": "node0", "device": "d0", "data": {"x": 1}}]
        if is_taken:
            assert (await server.ask("PUT", f"{CLAIMS}/a/status", claim, token=ONE))["status"]["devices"]
            return
        with pytest.raises(ApiRefused) as failed:
            await server.ask("PUT", f"{CLAIMS}/a/status", claim, token=ONE)
        assert [cause["reason"] for cause in failed.value.details["causes"]] == ["FieldValueForbidden"]
        assert 'changing status.devices requires resource="resourceclaims/driver", verb="[' in failed.value.message


async def test_a_device_that_is_not_allocated_has_no_status() -> None:
    async with SimulatedApiServer() as server:
        claim = await server.ask("POST", CLAIMS, objects.claim("a"))
        claim["status"] = {
            "allocation": objects.allocation([objects.result(DRIVER, "d0")]),
            "devices": [{"driver": DRIVER, "pool": "node0", "device": "d1"}],
        }
        with pytest.raises(ApiRefused, match="must be an allocated device in the claim"):
            await server.ask("PUT", f"{CLAIMS}/a/status", claim)


async def test_faults_meet_requests_as_often_as_told() -> None:
    async with both() as (server, client):
        server.faults.refused(429, "too many requests", retry_after=7)
        with pytest.raises(ApiRefused) as failed:
            await server.ask("GET", SLICES)
        assert (failed.value.status, failed.value.retry_after) == (429, 7)
        server.faults.internal_error(method="POST")
        await server.ask("GET", SLICES)
        with pytest.raises(ApiRefused, match="etcdserver: request timed out"):
            await server.ask("POST", SLICES, a_slice())
        server.faults.away()
        with pytest.raises(Exception, match=r"disconnected|connect|closed"):
            await client.get(Slice, "s1")
        server.faults.back()
        server.api.admission = lambda operation, item: f"no {operation}"
        with pytest.raises(ApiRefused, match="denied request: no CREATE") as denied:
            await server.ask("POST", SLICES, a_slice())
        assert denied.value.status == 422


async def test_a_fault_of_one_path_leaves_the_others_alone() -> None:
    async with both() as (server, _):
        server.faults.refused(403, "no", method="PUT", path="/status")
        await server.ask("POST", "/api/v1/nodes", objects.node("node0"))
        item = await server.ask("GET", "/api/v1/nodes/node0")
        await server.ask("PUT", "/api/v1/nodes/node0", item)
        with pytest.raises(ApiRefused, match="no"):
            await server.ask("PUT", "/api/v1/nodes/node0/status", item)
        await server.ask("PUT", "/api/v1/nodes/node0/status", item)


async def test_the_garbage_collector_deletes_what_belongs_to_a_node_that_is_gone() -> None:
    async with both() as (server, client):
        made = await server.ask("POST", "/api/v1/nodes", objects.node("node0"))
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node0", "uid": made["metadata"]["uid"]}
        item = a_slice("owned")
        item["metadata"]["ownerReferences"] = [owner]
        await server.ask("POST", SLICES, item)
        await server.ask("POST", SLICES, a_slice("free"))
        server.collect_garbage()
        assert len((await server.ask("GET", SLICES))["items"]) == 2
        await server.ask("DELETE", "/api/v1/nodes/node0")
        await server.ask("POST", "/api/v1/nodes", objects.node("node0"))
        told: list[tuple[str, str]] = []
        both_are_there = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                async for event, each in client.watch(Slice):
                    told.append((event, each.metadata.name))
                    if len(told) == 2:
                        both_are_there.set()
                    if event == "DELETED":
                        return

            tasks.start_soon(watch)
            with anyio.fail_after(PATIENCE):
                await both_are_there.wait()
            server.collect_garbage()
        assert told[-1] == ("DELETED", "owned")
        assert [each["metadata"]["name"] for each in (await server.ask("GET", SLICES))["items"]] == ["free"]


async def test_preconditions_of_a_deletion() -> None:
    async with SimulatedApiServer() as server:
        made = await server.ask("POST", SLICES, a_slice())
        for wanted in ({"uid": "other"}, {"resourceVersion": "0"}):
            with pytest.raises(ApiRefused, match="in the precondition") as failed:
                await server.ask("DELETE", f"{SLICES}/s1", {"preconditions": wanted})
            assert failed.value.status == 409
        await server.ask("DELETE", f"{SLICES}/s1", {"preconditions": {"uid": made["metadata"]["uid"]}})


async def test_a_kubelet_wipes_the_slices_of_its_node_at_its_start() -> None:
    async with SimulatedApiServer() as server:
        item = a_slice()
        item["spec"]["nodeName"] = "node0"
        other = a_slice("s2")
        other["spec"]["nodeName"] = "node1"
        await server.ask("POST", "/api/v1/nodes", objects.node())
        await server.ask("POST", SLICES, item)
        await server.ask("POST", SLICES, other)
        async with SimulatedDraKubelet(server.ask) as kubelet:
            await kubelet.until(lambda: ("DELETE " + SLICES, 200) in server.api.requests, "the slices are wiped")
        left = await server.ask("GET", SLICES)
        assert [each["metadata"]["name"] for each in left["items"]] == ["s2"]


async def test_labels_select_what_is_listed_and_deleted() -> None:
    async with SimulatedApiServer() as server:
        for name, labels in (("s1", {"team": "a"}), ("s2", {"team": "b", "old": ""}), ("s3", {})):
            item = a_slice(name)
            item["metadata"]["labels"] = labels
            await server.ask("POST", SLICES, item)

        async def listed(selector: str) -> list[str]:
            found = await server.ask("GET", f"{SLICES}?labelSelector={selector}")
            return [each["metadata"]["name"] for each in found["items"]]

        assert await listed("team") == ["s1", "s2"]
        assert await listed("!team") == ["s3"]
        assert await listed("team==b,old") == ["s2"]
        assert await listed("team=b,!old") == []
        with pytest.raises(ApiRefused, match="does not take 'team in \\(a\\)'"):
            await listed("team%20in%20(a)")
        await server.ask("DELETE", f"{SLICES}?labelSelector=team")
        assert await listed("") == ["s3"]


def test_a_json_patch_removes_elements_of_lists_if_they_are_what_was_judged() -> None:
    [kind] = [each for each in KINDS if each.plural == "nodes"]
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    node = {**objects.node(), "spec": {"taints": taints}}

    def patched(*operations: dict[str, Any]) -> list[Any]:
        found: list[Any] = json_patched(node, operations, kind)["spec"]["taints"]
        return found

    path = "/spec/taints/0"
    with pytest.raises(ApiRefused, match="testing value /spec/taints/0 failed"):
        patched({"op": "test", "path": path, "value": {"key": "b"}}, {"op": "remove", "path": path})
    with pytest.raises(ApiRefused, match="missing path"):
        patched({"op": "remove", "path": "/spec/taints/2"})
    remove = ({"op": "test", "path": path, "value": taints[0]}, {"op": "remove", "path": path})
    assert patched(*remove) == taints[1:]
