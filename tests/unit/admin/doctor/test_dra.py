"""Dynamic Resource Allocation: slices, fields, permissions, classes, and claims."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kdp.admin.doctor import dra
from kdp.admin.doctor.cluster import ClusterFacts
from kdp.admin.doctor.node import Node

from .samples import LEFT_OUT, device, node_in, resource, status, told, written

DRIVER = "w.example.com"
FORBIDDEN = (
    'create resourceslices node-0: the API server answered 403 Forbidden: resourceslices is forbidden: User "u" cannot '
    "create resource; a role must grant the verb 'create' on 'resourceslices'"
)
POLICY = "create resourceslices node-0: the API server answered 422 Invalid: ValidatingAdmissionPolicy 'p' denied it"


def served(state: str = "published", *, slices: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    held = {"generation": 1, "problem": None} | (slices or {})
    return status(resource(device("w0"), name=DRIVER, state=state, slices=held, **more), mode="dra")


def node(tmp_path: Path, *documents: dict[str, Any], **facts: Any) -> Node:
    return node_in(tmp_path, *documents, cluster=ClusterFacts(**facts))


def device_class(expression: str = f'device.driver == "{DRIVER}"', name: str = "widgets") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def claim(*, age: float = 60, of: str = "Pod", first: bool = False, **more: Any) -> dict[str, Any]:
    asked = {"deviceClassName": "widgets"}
    request = {"name": "r", "firstAvailable": [asked]} if first else {"name": "r", "exactly": asked}
    created = (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {
        "name": "c",
        "namespace": "n",
        "creationTimestamp": created,
        "ownerReferences": [{"kind": of, "name": "p"}],
    }
    return {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, **more}


def test_without_a_driver_there_is_nothing_to_ask(tmp_path: Path) -> None:
    for question in dra.QUESTIONS:
        assert told(question.ask(node_in(tmp_path)))[0] == "not known"
        assert told(question.ask(node_in(tmp_path, status(resource())))) == ("ok", "no DRA driver runs here | ")


@pytest.mark.parametrize(
    ("document", "verdict", "said"),
    [
        (served(), "ok", f"{DRIVER}: 1 device published"),
        (
            served("registered", slices={"generation": 0}, reason="the devices are not published yet"),
            "failed",
            f"{DRIVER}: no slice is published (the devices are not published yet) | see the next answers",
        ),
        (served(slices={"problem": POLICY}), "warning", f"{DRIVER}: the slices are old: create"),
        (served(slices={"withheld": {"w1": "DRAPartitionableDevices"}}), "warning", "1 device not published: w1"),
    ],
)
def test_slices(tmp_path: Path, document: dict[str, Any], verdict: str, said: str) -> None:
    found, text = told(dra.published(node(tmp_path, document)))
    assert (found, said in text) == (verdict, True), text


def test_fields_that_the_server_drops(tmp_path: Path) -> None:
    assert told(dra.fields(node(tmp_path, served())))[0] == "ok"
    dropped = {"dropped": [{"path": "spec.devices[0].taints", "gate": "DRADeviceTaints"}]}
    withheld = {"withheld": {"w1": "DRAPartitionableDevices"}}
    verdict, text = told(dra.fields(node(tmp_path, served(slices=dropped | withheld))))
    assert (verdict, "it leaves out spec.devices[0].taints" in text) == ("warning", True)
    assert text.endswith("--feature-gates=DRADeviceTaints=true,DRAPartitionableDevices=true")
    unknown = {"dropped": [{"path": "spec.new", "gate": ""}]}
    assert "update Kubernetes" in told(dra.fields(node(tmp_path, served(slices=unknown))))[1]


@pytest.mark.parametrize(
    ("problem", "verdict", "said"),
    [
        (None, "ok", "refused nothing"),
        ("list resourceslices: the API server https://a was not reached: timeout", "ok", "refused nothing"),
        (FORBIDDEN, "failed", "apply the ClusterRole and its binding, as kdp manifests"),
        (POLICY, "failed", "see which policy refuses: kubectl get validatingadmissionpolicies"),
        ("get nodes n: the API server rejects the credentials (401): the token is not valid", "failed", "new token"),
    ],
)
def test_permissions(tmp_path: Path, problem: str | None, verdict: str, said: str) -> None:
    for document in (
        served(slices={"problem": problem}),
        served("registered", slices={"generation": 0}, reason=problem),
    ):
        found, text = told(dra.permissions(node(tmp_path, document)))
        assert (found, said in text) == (verdict, True), text


def test_the_class(tmp_path: Path) -> None:
    for classes in ([], [device_class('device.driver == "other.example.com"'), {"metadata": {"name": "any"}}]):
        verdict, text = told(dra.device_class(node(tmp_path, served(), classes=classes)))
        assert (verdict, f"no DeviceClass selects the devices of {DRIVER} | make one" in text) == ("failed", True)
        words = shlex.split(text.partition("make one: ")[2])
        assert words[0::2] == ["echo", "|", "apply", "-"]
        made = json.loads(words[1])
        assert told(dra.device_class(node(tmp_path, served(), classes=[made]))) == ("ok", f"{DRIVER}: {DRIVER} | ")
    assert told(dra.device_class(node(tmp_path, served(), classes=[device_class()]))) == ("ok", f"{DRIVER}: widgets | ")


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (claim, "warning"),
        (partial(claim, first=True), "warning"),
        (partial(claim, age=5), "ok"),
        (partial(claim, of="Job"), "ok"),
        (partial(claim, status={"allocation": {"devices": {}}}), "ok"),
        (lambda: {"metadata": 7, "spec": {"devices": {"requests": "odd"}}, "status": []}, "ok"),
    ],
)
def test_a_claim_that_waits(tmp_path: Path, made: Callable[[], dict[str, Any]], verdict: str) -> None:
    found = made()  # now, because it has an age
    asked = node(tmp_path, served(), classes=[device_class()], claims=[found])
    answer, text = told(dra.claims(asked))
    assert answer == verdict, text
    if verdict == "warning":
        assert re.fullmatch(
            r"1 claim without devices: n/c: without devices for \d+ s \| see what the scheduler says: "
            "kubectl -n n describe pod p",
            text,
        )
    others = [device_class(name="others"), device_class('device.driver == "x"')]
    other = node(tmp_path, served(), classes=others, claims=[found])
    assert told(dra.claims(other))[0] == "ok"


def test_an_account_that_may_not_ask_made_each_healthy_driver_not_known(tmp_path: Path) -> None:
    for ask in (dra.device_class, dra.claims):
        assert told(ask(node(tmp_path, served(), problem="403 Forbidden", is_impossible=True))) == LEFT_OUT


def test_an_api_server_that_cannot_be_asked_is_no_fault(tmp_path: Path) -> None:
    for ask in (dra.device_class, dra.claims):
        verdict, text = told(ask(node(tmp_path, served(), problem="the API server did not answer")))
        assert (verdict, text) == (
            "not known",
            "the API server did not answer | ask as an administrator: kdp doctor --kubeconfig FILE",
        )
        written(tmp_path / "cgroup/memory.max", str(50 << 20))
        written(tmp_path / "cgroup/memory.current", str(40 << 20))
        assert told(ask(node(tmp_path, served()))) == LEFT_OUT
        (tmp_path / "cgroup/memory.max").unlink()


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        (f'device.driver=="{DRIVER}" && device.attributes["x"].y', "ok"),
        (f"'{DRIVER}' == device.driver", "ok"),
        (f'device.driver != "{DRIVER}"', "failed"),
        (f'device.driver == "other{DRIVER}"', "failed"),
        (f'device.driver == "{DRIVER}.org"', "failed"),
        ('device.driver == "wxexample.com"', "failed"),
        (f'device.driver in ["{DRIVER}"]', "not known"),
    ],
)
def test_a_class_that_only_mentions_the_driver_was_taken_for_its_class(
    tmp_path: Path, expression: str, verdict: str
) -> None:
    found, text = told(dra.device_class(node(tmp_path, served(), classes=[device_class(expression)])))
    assert found == verdict, text


def test_a_claim_whose_class_is_gone_did_not_wait(tmp_path: Path) -> None:
    for classes in ([], [device_class(name="others")]):
        verdict, text = told(dra.claims(node(tmp_path, served(), classes=classes, claims=[claim()])))
        assert (verdict, "n/c: there is no DeviceClass widgets | make the class" in text) == ("warning", True), text
