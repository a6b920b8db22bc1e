"""A publisher before a real API server, over TLS: start, wipe, foreign edits, rotating tokens, a killed server.

The API server answers in a network namespace; `Door` lets the test in, and shuts.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

import kdp
from kdp.cluster.api import ApiError
from kdp.cluster.client import KubeApi
from kdp.dra.publishing import pacing
from kdp.dra.publishing.publisher import Publisher
from kdp.dra.publishing.slices import Pool

from .conftest import MakeCluster
from .nodekit import Cluster
from .nodekit.cluster import NODE

# httpx2 leaves a socket to the garbage collector whose TLS handshake is cancelled, as at the end of a publisher.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

SLICES = "resource.k8s.io/v1/resourceslices"
PATH = f"/apis/{SLICES}"
DRIVER = "gpu.example.com"
Object = dict[str, Any]


class Door:
    """Passes connections from a port of the test to the API server of a cluster.

    Attributes:
        port: Where it listens.
        is_open: Whether new connections are let in.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._namespace = Path(f"/proc/{cluster.first_process}/ns/net")
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.is_open = True

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[Door]:
        server = await asyncio.start_server(self._enter, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections."""
        for task in list(self._tasks):
            task.cancel()

    def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            try:
                if self.is_open:
                    inside = await anyio.to_thread.run_sync(self._connect)
                    theirs, ours = await asyncio.open_connection(sock=inside)
                    try:
                        await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))
                    finally:
                        ours.transport.abort()
            finally:
                writer.transport.abort()

    def _connect(self) -> socket.socket:
        """Connect from within the cluster's network, in a thread that ends there."""
        made: list[socket.socket] = []

        def work() -> None:
            with self._namespace.open() as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                    return
            with suppress(OSError):
                made.append(socket.create_connection(("10.0.0.1", 443)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if not made:
            raise ConnectionRefusedError
        made[0].setblocking(False)
        return made[0]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@attrs.define
class Driver:
    """A driver's account in a cluster, and its publisher."""

    cluster: Cluster
    door: Door
    folder: Path
    api: KubeApi
    account: str
    pool: Pool
    publisher: Publisher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.publisher = Publisher(self.api, self.pool, owner=NODE)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.publisher.run)
            yield
            tasks.cancel_scope.cancel()

    async def stored(self) -> list[Object]:
        items = [item for item in await self.cluster.list(SLICES) if item["spec"]["pool"]["name"] == self.pool.name]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    async def until(self, condition: Callable[[list[Object]], object], seconds: float = 60.0) -> None:
        """Wait until the server's slices are so."""
        with anyio.fail_after(seconds):
            while not condition(await self.stored()):  # noqa: ASYNC110 - the server is asked
                await anyio.sleep(0.05)

    async def until_current(self, seconds: float = 60.0) -> None:
        with anyio.fail_after(seconds):
            status = self.publisher.status
            while not (status.value.is_current and status.value.problem is None):
                await status.after(status.version)

    async def published(self, devices: list[kdp.Device], **more: Any) -> None:
        self.publisher.publish(devices, **more)
        names = {device.id for device in devices} - self.publisher.status.value.withheld.keys()
        await self.until(lambda items: {d["name"] for i in items for d in i["spec"].get("devices", ())} == names)
        await self.until_current()

    async def token(self, bound: Object | None = None) -> str:
        """Make a token of the account; it ends with the object that it is bound to."""
        path = f"/api/v1/namespaces/default/serviceaccounts/{self.account}/token"
        spec: Object = {"expirationSeconds": 3600} | ({"boundObjectRef": bound} if bound else {})
        answer = await self.cluster.api("POST", path, {"spec": spec})
        return str(answer["status"]["token"])

    def hold(self, token: str) -> None:
        (self.folder / "next").write_text(token)
        os.replace(self.folder / "next", self.folder / "token")


@asynccontextmanager
async def driver_of(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, pool: str = NODE
) -> AsyncGenerator[Driver]:
    """Give a driver an account with the least rights, as a pod would find it."""
    meta = {"name": name, "namespace": "default"}
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": VERBS},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rbac = "rbac.authorization.k8s.io/v1"
    await cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
    )
    (folder / "namespace").write_text("default")
    (folder / "ca.crt").write_text((cluster.work / "pki/apiserver.crt").read_text())
    (folder / "token").write_text("none yet")
    async with Door(cluster)() as door:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(door.port))
        async with KubeApi(account=folder) as api:
            nodes = Pool.of_node(DRIVER, NODE).nodes
            made = Driver(cluster, door, folder, api, name, Pool(driver=DRIVER, name=pool, nodes=nodes))
            made.hold(await made.token())
            yield made


VERBS = ["list", "watch", "create", "update", "delete"]


@pytest.fixture
async def driver(shared_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    """A driver in the cluster of the whole run; its slices are gone at the end."""
    async with driver_of(shared_cluster, tmp_path, monkeypatch, "slices") as made:
        yield made
    await shared_cluster.api("DELETE", PATH)


def widgets(count: int, **more: Any) -> list[kdp.Device]:
    return [kdp.Device(id=f"w{n:05}", **more) for n in range(count)]


async def test_publish_wipe_edit_and_conflict(driver: Driver) -> None:
    cluster = driver.cluster
    start = time.monotonic()
    devices = widgets(130)
    driver.publisher.publish(devices)
    async with driver.running():
        await driver.published(devices)
        print(f"start -> published, seen by another client: {(time.monotonic() - start) * 1e3:.0f} ms")
        node = await cluster.api("GET", f"/api/v1/nodes/{NODE}")
        (owner,) = {json.dumps(item["metadata"]["ownerReferences"]) for item in await driver.stored()}
        assert json.loads(owner)[0]["uid"] == node["metadata"]["uid"]

        for wait in (pacing.SLICE_GAP, 0.0):  # the second time right after they were made again
            await anyio.sleep(wait)
            start = time.monotonic()
            await cluster.api("DELETE", f"{PATH}?fieldSelector=spec.nodeName={NODE}")
            await driver.until(lambda items: len(items) == 3)
            took = time.monotonic() - start
            print(f"wipe -> back: {took * 1e3:.0f} ms")
            await driver.until_current()
        (generation,) = {item["spec"]["pool"]["generation"] for item in await driver.stored()}
        assert generation == driver.publisher.status.value.generation

        (item, *_) = await driver.stored()
        before = item["spec"]
        start = time.monotonic()
        await cluster.api("PUT", f"{PATH}/{item['metadata']['name']}", {**item, "spec": {**before, "devices": []}})
        await driver.until(lambda items: items[0]["spec"].get("devices") == before["devices"])
        print(f"foreign edit -> reverted: {(time.monotonic() - start) * 1e3:.0f} ms")
        await driver.until_current()

        (item, *_) = await driver.stored()
        item["metadata"]["labels"] = {"theirs": "stays"}
        driver.publisher.publish([kdp.Device(id="w00000", attributes={"x": 1}), *devices[1:]])
        await cluster.api("PUT", f"{PATH}/{item['metadata']['name']}", item)  # a race: one of both gets 409
        await driver.until(lambda items: "attributes" in items[0]["spec"].get("devices", [{}])[0])
        await driver.until_current()
    before_stop = await driver.stored()
    assert len(before_stop) == 3
    assert await driver.publisher.remove() == 3
    assert await driver.stored() == []


async def test_token_rotates_and_a_dropped_watch_misses_nothing(driver: Driver) -> None:
    path = "/api/v1/namespaces/default/secrets"
    made = await driver.cluster.api("POST", path, {"metadata": {"name": "first"}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "first", "uid": made["metadata"]["uid"]}
    driver.hold(await driver.token(bound))
    status = driver.publisher.status
    async with driver.running():
        await driver.published(widgets(3))
        await driver.cluster.api("DELETE", f"{path}/first")  # and with it ends the token
        with anyio.fail_after(60):
            while "401" not in str(status.value.problem):
                driver.door.cut()
                await anyio.sleep(1)
        driver.publisher.publish(widgets(4))
        driver.hold(await driver.token())
        await driver.published(widgets(4))
        driver.door.is_open = False
        driver.door.cut()
        await driver.cluster.api("DELETE", PATH)
        with anyio.fail_after(60):
            while "not reached" not in str(status.value.problem):
                await status.after(status.version)
        driver.door.is_open = True
        await driver.published(widgets(4))
        assert len(await driver.stored()) == 1


async def test_an_authority_that_is_not_the_servers_is_said_and_taken_when_it_is_replaced(
    driver: Driver, tmp_path: Path
) -> None:
    right = (tmp_path / "ca.crt").read_text()
    wrong = ssl_certificate_of_nobody()
    (tmp_path / "ca.crt").write_text(wrong)
    async with KubeApi(account=tmp_path) as api:
        with pytest.raises(ApiError, match=r"is not trusted: .*certificate") as caught:
            await api.version()
        assert (caught.value.status, caught.value.reason) == (0, "TLS")
        (tmp_path / "ca.crt").write_text(right)
        assert (await api.version()).startswith("v1.")


def ssl_certificate_of_nobody() -> str:
    """Return a certificate of an authority that this machine knows, and the cluster's is not."""
    import ssl

    (first, *_) = ssl.create_default_context().get_ca_certs(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(first)


async def test_what_is_not_allowed_is_named(driver: Driver) -> None:
    with pytest.raises(ApiError, match="a role must grant the verb 'get' on 'resourceclaims'") as caught:
        await driver.api.claim("default", "none")
    assert caught.value.status == 403
    with pytest.raises(ApiError, match="404 NotFound"):
        await driver.api.node("nobody")


async def test_an_admission_policy_that_denies_is_said_without_a_storm(driver: Driver) -> None:
    """Scenario 56: the policy that binds slices to the node of the token."""
    cluster = driver.cluster
    expression = "object.spec.nodeName == 'elsewhere'"
    admission = "admissionregistration.k8s.io/v1"
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["resourceslices"],
        }
    ]
    policy = {
        "apiVersion": admission,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "own-node"},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": expression, "message": "this is not the node of the token"}],
        },
    }
    binding = {
        "apiVersion": admission,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "own-node"},
        "spec": {"policyName": "own-node", "validationActions": ["Deny"]},
    }
    await cluster.apply(policy, binding)
    try:
        with anyio.fail_after(60):  # until the policy is in force
            while True:
                driver.publisher = Publisher(driver.api, driver.pool, owner=NODE)
                driver.publisher.publish(widgets(3))
                async with driver.running():
                    status = driver.publisher.status
                    while status.value.problem is None and not status.value.is_current:
                        await status.after(status.version)
                    if status.value.problem is not None:
                        break
                await driver.publisher.remove()
        assert "this is not the node of the token" in str(status.value.problem)
        print(status.value.problem)
        assert await driver.stored() == []
    finally:
        await cluster.api("DELETE", f"/apis/{admission}/validatingadmissionpolicybindings/own-node")
        await cluster.api("DELETE", f"/apis/{admission}/validatingadmissionpolicies/own-node")
    async with driver.running():
        await driver.published(widgets(3))


async def test_ten_thousand_devices(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    ask = driver.api._request

    async def counted(method: str, *args: Any, **more: Any) -> Any:
        asked.append((method, len(json.dumps(more["body"])) if more.get("body") else 0))
        return await ask(method, *args, **more)

    monkeypatch.setattr(driver.api, "_request", counted)
    devices = widgets(10_000, attributes={"model": "X", "driver": kdp.Version("1.2.3")}, capacity={"memory": 80})
    start = time.monotonic()
    driver.publisher.publish(devices)
    async with driver.running():
        await driver.until_current()
        took = time.monotonic() - start
        stored = await driver.stored()
        assert sum(len(item["spec"]["devices"]) for item in stored) == 10_000
        sent = sum(size for _, size in asked)
        print(f"10,000 devices: {len(stored)} slices, {len(asked)} requests, {sent} bytes, {took:.2f} s")
        asked.clear()
        devices[5000] = kdp.Device(id="w05000", attributes={"hot": True})
        start = time.monotonic()
        driver.publisher.publish(devices)
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            while not asked:  # noqa: ASYNC110 - what is asked tells nobody
                await anyio.sleep(0.001)
        await driver.until_current()
        print(f"one of them changes: {[method for method, _ in asked]} in {(time.monotonic() - start) * 1e3:.0f} ms")
        assert [method for method, _ in asked] == ["PUT"]
        start = time.monotonic()
        await driver.cluster.api("DELETE", PATH)
        await driver.until(lambda items: len(items) == len(stored))
        print(f"all of them are wiped -> back: {time.monotonic() - start:.2f} s")


# -- clusters of their own ---------------------------------------------------------------------------------------------


async def test_the_api_server_is_killed_and_the_node_is_made_anew(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await make_cluster()
    async with driver_of(cluster, tmp_path, monkeypatch, "slices") as driver, driver.running():
        await driver.published(widgets(70))
        await cluster.kill_api_server()
        driver.publisher.publish(widgets(71))
        with anyio.fail_after(60):
            status = driver.publisher.status
            while status.value.problem is None:
                await status.after(status.version)
        meanwhile = status.value.problem
        await cluster.restart_api_server()
        start = time.monotonic()
        await driver.published(widgets(71))
        print(f"API server back -> published: {time.monotonic() - start:.2f} s; meanwhile: {meanwhile}")
        assert len(await driver.stored()) == 2

        before = await cluster.api("GET", f"/api/v1/nodes/{NODE}")
        await cluster.crash()
        await cluster.api("DELETE", f"/api/v1/nodes/{NODE}")
        await driver.until(lambda items: not items)  # by the garbage collector
        await cluster.start()
        uid = before["metadata"]["uid"]
        await driver.until(
            lambda items: len(items) == 2 and all(i["metadata"]["ownerReferences"][0]["uid"] != uid for i in items)
        )


async def test_a_gate_that_is_off_is_named_and_its_partitions_are_withheld(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 44."""
    cluster = await make_cluster(feature_gates={"DRAPartitionableDevices": False}, has_node=False)
    async with driver_of(cluster, tmp_path, monkeypatch, "slices") as driver, driver.running():
        part = kdp.Device(id="part", consumes={"card": {"memory": 1}})
        driver.publisher.publish([*widgets(2), part], counters={"card": {"memory": 4}})
        await driver.until_current()
        status = driver.publisher.status.value
        assert status.withheld == {"part": "DRAPartitionableDevices"}
        assert {field.gate for field in status.dropped} == {"DRAPartitionableDevices"}
        items = await driver.stored()
        assert [d["name"] for item in items for d in item["spec"].get("devices", ())] == ["w00000", "w00001"]
        version = [item["metadata"]["resourceVersion"] for item in items]
        await anyio.sleep(2)
        assert [item["metadata"]["resourceVersion"] for item in await driver.stored()] == version
