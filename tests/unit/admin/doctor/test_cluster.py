"""What the doctor asks of an API server."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from anyio import to_thread
from tests.unit.cluster.http_server import Answer, HttpServer, served

from kdp.admin.doctor import cluster
from kdp.admin.doctor.cluster import ClusterFacts, ask
from kdp_testkit.dra.server import write_kubeconfig
from kdp_testkit.patience import PATIENCE


async def asked(server: HttpServer, folder: Path) -> ClusterFacts:
    return await to_thread.run_sync(partial(ask, write_kubeconfig(folder, server.url)))


async def test_classes_and_claims_are_two_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", PATIENCE)
    async with served() as server:
        server.reply = lambda request: Answer(body={"items": [{"metadata": {"name": request.path}}, 7]})
        found = await asked(server, tmp_path)
    base = "/apis/resource.k8s.io/v1"
    assert [each["metadata"]["name"] for each in (*found.classes, *found.claims)] == [
        f"{base}/deviceclasses",
        f"{base}/resourceclaims",
    ]
    assert found.problem == ""


async def test_a_refusal_is_the_reason(tmp_path: Path) -> None:
    async with served() as server:
        server.reply = lambda _: Answer(
            status=403, body={"message": "User u cannot list resource", "reason": "Forbidden"}
        )
        found = await asked(server, tmp_path)
    assert "a role must grant the verb 'list' on 'deviceclasses'" in found.problem
    assert found.is_impossible


def test_no_configuration_and_no_library_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the API server cannot be used as" in ask(tmp_path / "none").problem
    monkeypatch.delitem(sys.modules, "kdp.cluster.client", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    found = ask(tmp_path / "none")
    assert (found.is_impossible, "comes with the extra 'kube'" in found.problem) == (True, True)


def test_a_client_was_loaded_where_there_is_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delitem(sys.modules, "kdp.cluster.client", raising=False)
    assert ask(None).is_impossible
    assert "kdp.cluster.client" not in sys.modules


async def test_a_server_that_says_nothing_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)

    async with served() as server:
        server.reply = lambda _: None
        found = await asked(server, tmp_path)
    assert "did not answer within 0.2 s" in found.problem or "said nothing for 0.2 s" in found.problem
