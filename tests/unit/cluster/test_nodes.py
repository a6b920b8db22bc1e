"""Lists in pages, applications, and patches of nodes over real HTTP; and who owns a field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kdp.cluster.api import OddAnswerError
from kdp.cluster.client import KubeApi
from kdp.cluster.nodes import nodes, owned, owners
from kdp_testkit.dra.server import write_kubeconfig

from .http_server import Answer, Asked, HttpServer
from .http_server import served as serving


def item(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}", **metadata}}


@asynccontextmanager
async def served(reply: Callable[[Asked], Answer]) -> AsyncIterator[HttpServer]:
    async with serving() as server:
        server.reply = reply
        yield server


async def test_a_list_comes_in_pages(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        token = asked.query.get("continue", "")
        page = int(token.partition("-")[2] or 0)
        metadata = {"resourceVersion": "7", **({"continue": f"page-{page + 1}"} if page < 2 else {"continue": ""})}
        return Answer(body={"kind": "NodeList", "metadata": metadata, "items": [item(f"n{page}")] if page else None})

    async with served(answer) as server, KubeApi(write_kubeconfig(tmp_path, server.url)) as api:
        found = [each["metadata"]["name"] async for each in nodes(api)]
        assert found == ["n1", "n2"]
        assert [asked.query.get("continue") for asked in server.asked] == [None, "page-1", "page-2"]
        assert {asked.query["limit"] for asked in server.asked} == {"250"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metadata": {}, "items": "a"}, "items must be a list"),
        ({"metadata": {"continue": "same"}, "items": []}, "the answer names itself as the next page"),
    ],
)
async def test_what_is_no_list_of_nodes_is_told(tmp_path: Path, body: Any, words: str) -> None:
    async with (
        served(lambda _: Answer(body=body)) as server,
        KubeApi(write_kubeconfig(tmp_path, server.url)) as api,
    ):
        with pytest.raises(OddAnswerError, match=words):
            _ = [each async for each in nodes(api)]


async def test_an_application_and_a_patch_are_what_the_api_server_takes(tmp_path: Path) -> None:
    async with (
        served(lambda _: Answer(body=item("a"))) as server,
        KubeApi(write_kubeconfig(tmp_path, server.url)) as api,
    ):
        await api.apply_node(item("a"), manager="me")
        await api.apply_node(item("a"), manager="me", force=True, dry_run=True)
        patch = [{"op": "add", "path": "/status/capacity/x~1y", "value": "4"}]
        await api.patch_node_status("a", patch, manager="me")
        first, second, third = server.asked
        assert (first.method, first.path, first.query) == (
            "PATCH",
            "/api/v1/nodes/a",
            {"fieldManager": "me", "force": "false"},
        )
        assert first.headers["content-type"] == "application/apply-patch+yaml"
        assert (second.query["force"], second.query["dryRun"]) == ("true", "All")
        assert (third.path, third.body) == ("/api/v1/nodes/a/status", patch)
        assert third.headers["content-type"] == "application/json-patch+json"


MANAGED = [
    {
        "manager": "kubelet",
        "operation": "Update",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:capacity": {".": {}, "f:example.com/x": {}}}},
    },
    {
        "manager": "me",
        "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:a/b": {}, "f:a/c": {}}}},
    },
    {"manager": "me", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:a/d": {}}}}},
    {"manager": "odd", "operation": "Update", "fieldsV1": {"f:metadata": "text"}},
    {"manager": "bare", "operation": "Update"},
]


def test_owners_of_a_field_are_found() -> None:
    subject = item("a", managedFields=MANAGED)
    assert owners(subject, "status", "capacity", "example.com/x") == ["kubelet"]
    assert owners(subject, "status", "capacity", "example.com/y") == []
    assert owners(item("a"), "status", "capacity", "example.com/x") == []


def test_fields_that_a_manager_applied_are_found() -> None:
    subject = item("a", managedFields=MANAGED)
    assert [*owned(subject, "me", "metadata", "labels")] == ["a/b", "a/c"]
    assert [*owned(subject, "odd", "metadata", "labels")] == []
