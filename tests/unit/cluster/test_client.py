from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kdp.cluster.api import ApiError, ClusterApi, NodeApi, WatchEvent
from kdp.cluster.client import KubeApi
from kdp.errors import ConfigurationError

from .http_server import Answer, HttpServer, served

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ITEM = {"metadata": {"name": "s1", "uid": "u", "resourceVersion": "7"}, "spec": {"driver": "gpu.example.com"}}


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with served() as made:
        yield made


def kubeconfig(tmp_path: Path, url: str, user: dict[str, str] | None = None) -> Path:
    file = tmp_path / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(config))
    return file


@pytest.fixture
async def api(server: HttpServer, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with KubeApi(kubeconfig(tmp_path, server.url, {"token": "known"}), deadline=0.5, silence=0.5) as made:
        yield made


async def test_each_method_is_one_request(server: HttpServer, api: KubeApi) -> None:
    client: ClusterApi = api
    metadata = {"resourceVersion": "9", "name": "s1"}
    answer: dict[str, Any] = {"gitVersion": "v1.37.1", "metadata": metadata, "items": [ITEM]}

    def of_kind(kind: str) -> dict[str, Any]:
        server.reply = lambda _: Answer(body=answer | {"kind": kind})
        return answer | {"kind": kind}

    of_kind("Info")
    claim = {"metadata": {"namespace": "n", "name": "c"}, "status": {}}
    assert await client.version() == "v1.37.1"
    node = of_kind("Node")
    assert await client.node("node-0") == node
    kept = of_kind("ResourceClaim")
    assert await client.claim("n", "c") == kept
    assert await client.update_claim_status(claim) == kept
    of_kind("ResourceSliceList")
    found = await client.slices(driver="gpu.example.com", node="node-0")
    assert (found.items, found.resource_version) == ((ITEM,), "9")
    await client.slices(driver="gpu.example.com")
    stored = of_kind("ResourceSlice")
    assert await client.create_slice(ITEM) == stored
    assert await client.update_slice(ITEM) == stored
    await client.delete_slice(ITEM)
    of_kind("Event")
    await client.create_event({"apiVersion": "v1", "metadata": {"namespace": "n"}})
    await client.create_event({"apiVersion": "events.k8s.io/v1", "metadata": {"namespace": "n"}})
    claims = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/c"
    assert [(each.method, each.path) for each in server.asked] == [
        ("GET", "/version"),
        ("GET", "/api/v1/nodes/node-0"),
        ("GET", claims),
        ("PUT", f"{claims}/status"),
        ("GET", SLICES),
        ("GET", SLICES),
        ("POST", SLICES),
        ("PUT", f"{SLICES}/s1"),
        ("DELETE", f"{SLICES}/s1"),
        ("POST", "/api/v1/namespaces/n/events"),
        ("POST", "/apis/events.k8s.io/v1/namespaces/n/events"),
    ]
    assert server.asked[4].query == {"fieldSelector": "spec.driver=gpu.example.com,spec.nodeName=node-0"}
    assert server.asked[5].query == {"fieldSelector": "spec.driver=gpu.example.com"}
    assert server.asked[6].body == ITEM
    assert server.asked[8].body["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert {each.headers["authorization"] for each in server.asked} == {"Bearer known"}


async def test_each_method_of_a_plugin_is_one_request(server: HttpServer, api: KubeApi) -> None:
    client: NodeApi = api
    server.reply = lambda _: Answer(body={"kind": "Pod", "metadata": {"name": "x"}})
    patch = [{"op": "test", "path": "/spec/taints/0", "value": {}}]
    await client.patch_node("node-0", patch)
    await client.pod("n", "p")
    await client.evict("n", "p", uid="u", is_dry=False)
    await client.evict("n", "p", uid="u", is_dry=True)
    await client.patch_event("n", "e", {"count": 2})
    assert [(each.method, each.path) for each in server.asked] == [
        ("PATCH", "/api/v1/nodes/node-0"),
        ("GET", "/api/v1/namespaces/n/pods/p"),
        ("POST", "/api/v1/namespaces/n/pods/p/eviction"),
        ("POST", "/api/v1/namespaces/n/pods/p/eviction"),
        ("PATCH", "/api/v1/namespaces/n/events/e"),
    ]
    node, _, real, dry, event = server.asked
    assert (node.headers["content-type"], node.body) == ("application/json-patch+json", patch)
    assert (event.headers["content-type"], event.body) == ("application/merge-patch+json", {"count": 2})
    assert real.body["deleteOptions"] == {"preconditions": {"uid": "u"}}
    assert dry.body["deleteOptions"] == {"preconditions": {"uid": "u"}, "dryRun": ["All"]}
    assert (real.body["apiVersion"], real.body["kind"]) == ("policy/v1", "Eviction")


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (400, "the body is strange", "answered 400 Because: the body is strange"),
        (403, 'User "x" cannot create resource', "a role must grant the verb 'create' on 'resourceslices'"),
        (500, "", "it gave no reason"),
        (503, "x" * 900, "xxx..."),
        (401, "Unauthorized", "rejects the credentials (401)"),
    ],
)
async def test_refusal_is_a_sentence(server: HttpServer, api: KubeApi, status: int, message: str, words: str) -> None:
    server.reply = lambda _: Answer(status=status, body={"message": message, "reason": "Because", "code": status})
    with pytest.raises(ApiError) as caught:
        await api.create_slice(ITEM)
    assert (caught.value.status, caught.value.reason, caught.value.retry_after) == (status, "Because", None)
    assert str(caught.value).startswith("create resourceslices s1: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("status", [409, 429, 503])
async def test_what_fails_is_not_sent_again(server: HttpServer, api: KubeApi, status: int) -> None:
    server.reply = lambda _: Answer(status=status, body={}, headers={"Retry-After": "0"})
    for call in (lambda: api.create_slice(ITEM), api.version):
        before = len(server.asked)
        with pytest.raises(ApiError):
            await call()
        assert len(server.asked) == before + 1


async def test_token_is_read_anew_when_it_is_refused(server: HttpServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    good = "first"
    server.reply = lambda asked: (
        Answer(body={"gitVersion": "v1.37.1"})
        if asked.headers["authorization"] == f"Bearer {good}"
        else Answer(status=401, body={})
    )
    async with KubeApi(kubeconfig(tmp_path, server.url, {"tokenFile": "token"})) as api:
        await api.version()
        good = "second"
        with pytest.raises(ApiError, match="rejects the credentials"):
            await api.version()
        token.write_text("second\n")
        await api.version()
        token.unlink()
        await api.version()
        good = "third"
        with pytest.raises(ApiError, match=r"Token file .* not found") as caught:
            await api.version()
        assert caught.value.status == 0


async def test_account_of_the_pod(server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("text")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_HOST is not set"):
        KubeApi(account=tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigurationError, match="No such file"):  # the certificate
        KubeApi(account=tmp_path)


@pytest.mark.parametrize("text", ["{", '{"clusters": 7}'])
def test_a_broken_kubeconfig_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"cannot be used as {file} says: "):
        KubeApi(file)


async def test_no_answer_is_an_error_in_time(server: HttpServer, api: KubeApi) -> None:
    server.reply = lambda _: None
    with pytest.raises(ApiError, match=r"sent nothing for 0\.5 s") as caught:
        await api.version()
    assert caught.value.status == 0
    with pytest.raises(ApiError, match=r"sent nothing for 0\.5 s"):
        await anext(api.watch_slices(driver="d", resource_version="1"))


async def test_no_server_and_no_json(server: HttpServer, api: KubeApi, tmp_path: Path) -> None:
    server.reply = lambda _: Answer(body=b"hello")
    with pytest.raises(ApiError, match="its answer is not JSON"):
        await api.version()
    server.reply = lambda _: Answer(chunks=(b"{",), then="cut")
    with pytest.raises(ApiError, match="was not reached"):
        await api.version()
    async with KubeApi(kubeconfig(tmp_path, "http://127.0.0.1:9")) as nobody:
        with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:9 was not reached: .*[Cc]onnect") as caught:
            await nobody.version()
    assert caught.value.status == 0


async def test_a_cancelled_handshake_leaves_no_connection(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        begun.set()
        await reader.read()  # until the client closes it
        ended.set()
        writer.close()

    listener = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, KubeApi(kubeconfig(tmp_path, f"https://127.0.0.1:{port}"), deadline=60) as api:
        asked = asyncio.create_task(api.version())
        async with asyncio.timeout(10):
            await begun.wait()
            asked.cancel()
            await ended.wait()
    assert asked.cancelled()


# -- watches -----------------------------------------------------------------------------------------------------------


def line(kind: str, **item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}, ensure_ascii=False).encode() + b"\n"


async def watched(api: KubeApi) -> list[WatchEvent]:
    return [event async for event in api.watch_slices(driver="d", node="n", resource_version="5")]


async def test_watch_yields_events_until_the_server_ends_it(server: HttpServer, api: KubeApi) -> None:
    odd = {"text": "next line: \x85, and \u2028"}  # characters at which lines would be divided
    text = line("ADDED", spec=odd) + line("BOOKMARK", metadata={"resourceVersion": "8"}) + b"\n" + line("DELETED")
    server.reply = lambda _: Answer(chunks=(text[:7], text[7:90], text[90:]))
    assert await watched(api) == [
        WatchEvent("ADDED", {"spec": odd}),
        WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "8"}}),
        WatchEvent("DELETED", {}),
    ]
    query = server.asked[0].query
    assert 240 <= int(query.pop("timeoutSeconds")) <= 480
    assert query == {
        "fieldSelector": "spec.driver=d,spec.nodeName=n",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
    }


async def test_watch_that_cannot_go_on_says_why(server: HttpServer, api: KubeApi) -> None:
    gone = line("ERROR", code=410, reason="Expired", message="too old resource version: 5 (9)")
    server.reply = lambda _: Answer(chunks=(line("ADDED"), gone))
    with pytest.raises(ApiError, match="too old resource version") as caught:
        await watched(api)
    assert (caught.value.status, caught.value.reason) == (410, "Expired")
    server.reply = lambda _: Answer(status=403, body={"message": "cannot watch resource"})
    with pytest.raises(ApiError, match="must grant the verb 'watch' on 'resourceslices'"):
        await watched(api)


@pytest.mark.parametrize(("then", "words"), [("cut", "was not reached"), ("silence", r"sent nothing for 0\.5 s")])
async def test_a_lost_connection_is_noticed(server: HttpServer, api: KubeApi, then: str, words: str) -> None:
    server.reply = lambda _: Answer(chunks=(line("ADDED"),), then=then)
    events = api.watch_slices(driver="d", resource_version="5")
    assert (await anext(events)).kind == "ADDED"
    with pytest.raises(ApiError, match=words) as caught:
        await anext(events)
    assert caught.value.status == 0


# -- the extra ---------------------------------------------------------------------------------------------------------


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "kdp.cluster.client")
    with pytest.raises(ConfigurationError, match=r"needs httpx2, .* pip install 'kdp-sdk\[kube\]'"):
        importlib.import_module("kdp.cluster.client")


def test_a_plugin_that_tells_kubernetes_nothing_loads_nothing_for_it() -> None:
    code = (
        "import sys, kdp.daemon.serving, kdp.daemon.services, kdp.deviceplugin.manager, kdp.operations.status;"
        "print([n for n in sys.modules if n.startswith(('kdp.cluster', 'kdp.operations.c', 'lightkube', 'httpx2'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
