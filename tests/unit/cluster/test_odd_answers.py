"""What a real connection brings that no API server answers: each is one sentence, and the next request works."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kdp.cluster import client
from kdp.cluster.api import ApiError, OddAnswerError
from kdp.cluster.client import KubeApi

from .http_server import Answer, HttpServer, served
from .test_client import ITEM, kubeconfig, line


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with served() as made:
        yield made


@pytest.fixture
async def api(server: HttpServer, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with KubeApi(kubeconfig(tmp_path, server.url), deadline=5.0, silence=5.0) as made:
        yield made


async def watched(api: KubeApi) -> list[str]:
    return [event.kind async for event in api.watch_slices(driver="d", resource_version="1")]


@pytest.mark.parametrize("body", [{}, {"metadata": {"name": "s2"}}])
async def test_a_slice_is_not_deleted_because_a_proxy_answers(server: HttpServer, api: KubeApi, body: object) -> None:
    server.reply = lambda _: Answer(body=body)
    with pytest.raises(OddAnswerError, match="must be a Status, or the deleted object"):
        await api.delete_slice({"metadata": {"name": "s1", "uid": "u", "resourceVersion": "7"}})


@pytest.mark.parametrize("body", [{"kind": "Status", "status": "Success"}, {"metadata": {"name": "s1"}}])
async def test_a_slice_is_deleted_if_the_api_server_says_so(server: HttpServer, api: KubeApi, body: object) -> None:
    server.reply = lambda _: Answer(body=body)
    await api.delete_slice({"metadata": {"name": "s1", "uid": "u", "resourceVersion": "7"}})


async def test_a_pods_endless_answer_costs_bounded_memory(server: HttpServer, api: KubeApi) -> None:
    sent = (b"x" * (1 << 16),) * (2 * client.MOST_OF_TEXT >> 16)
    server.reply = lambda _: Answer(chunks=sent)
    with pytest.raises(OddAnswerError, match=r"^get pods/proxy n/p: .*more than 256 KiB"):
        await api.text("/api/v1/namespaces/n/pods/p:80/proxy/readyz", "get pods/proxy n/p")


@pytest.mark.parametrize(
    "odd",
    [
        line("ADDED")[:20] + b"\n",
        b'{"object": {}}\n',
        json.dumps({"type": "ERROR", "object": "no"}).encode() + b"\n",
    ],
    ids=ascii,
)
async def test_a_line_of_a_watch_that_is_no_event_ends_it(server: HttpServer, api: KubeApi, odd: bytes) -> None:
    server.reply = lambda _: Answer(chunks=(line("ADDED"), odd, line("ADDED")))
    with pytest.raises(ApiError, match="watch resourceslices: the answer of the API server is not understood"):
        await watched(api)


async def test_half_a_line_at_the_end_is_no_event(server: HttpServer, api: KubeApi) -> None:
    """The next watch goes on where the last whole line was."""
    server.reply = lambda _: Answer(chunks=(line("ADDED"), line("MODIFIED")[:30]))
    assert await watched(api) == ["ADDED"]


async def test_a_write_whose_answer_is_odd_may_have_been_done(server: HttpServer, api: KubeApi) -> None:
    server.reply = lambda _: Answer(body=b"<html>")
    with pytest.raises(OddAnswerError):
        await api.create_slice(ITEM)
