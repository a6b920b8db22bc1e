"""The scenarios of DRA that are played with a simulation and with the real thing: each returns what was seen.

`api_observations` asks an API server by one function; `kubelet_observations` starts and ends pods with one driver.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from tests.dra_recorder import RecordingDriver
from tests.slice_cases import good

from kdp_testkit.dra import objects

Object = dict[str, Any]
Ask = Callable[..., Awaitable[Object]]
"""Method, path and body; raises `Refused`."""

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "recorder.example.com"
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"\b\d{2,}\b|(?<=\()\d+(?=\))")


class Refused(Exception):
    """An API server's Status."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        super().__init__(status.get("message"))
        self.status = status


def plain(text: str) -> str:
    """Return a text without what differs between two runs: UIDs and versions."""
    return _NUMBER.sub("N", _UID.sub("UID", text))


async def _seen(ask: Ask, method: str, path: str, body: object = None) -> tuple[str, Object | None]:
    """Ask, and return what was answered in words, and the object."""
    try:
        answer = await ask(method, path, body)
    except Refused as refused:
        status = refused.status
        details = status.get("details") or {}
        fields = sorted({cause["field"] for cause in details.get("causes", ())})
        # Of what is invalid only the fields are compared: our words are our own.
        text = f"fields {fields}" if status["code"] == 422 else plain(status["message"])
        said = f"{status['code']} {status['reason']} {details.get('kind')} {details.get('name')}: {text}"
        return said, None
    meta = answer.get("metadata") or {}
    return f"{answer.get('kind')} generation {meta.get('generation')}", answer


def _named(name: str) -> Object:
    item: Object = copy.deepcopy(good())
    item["metadata"] = {"name": name}
    return item


async def api_observations(ask: Ask) -> dict[str, Any]:
    """Play slices with an API server: create, conflicts, deletion with preconditions, selectors, immutable fields."""
    seen: dict[str, Any] = {}

    async def look(what: str, method: str, path: str, body: object = None) -> Object | None:
        seen[what], answer = await _seen(ask, method, path, body)
        return answer

    made = await look("create", "POST", SLICES, _named("d1"))
    assert made is not None
    await look("create again", "POST", SLICES, _named("d1"))
    generated = _named("")
    generated["metadata"] = {"generateName": "00000-gen-"}
    other = await look("create with generateName", "POST", SLICES, generated)
    assert other is not None
    name = other["metadata"]["name"]
    seen["generated"] = bool(re.fullmatch(r"00000-gen-[bcdfghjklmnpqrstvwxz2456789]{5}", name))
    await look("get none", "GET", f"{SLICES}/none")
    same = await look("the same again", "PUT", f"{SLICES}/d1", made)
    seen["the same again is no write"] = same is not None and (
        same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    )
    changed = copy.deepcopy(made)
    changed["spec"]["pool"]["generation"] += 1
    await look("change", "PUT", f"{SLICES}/d1", changed)
    await look("change what has changed", "PUT", f"{SLICES}/d1", changed)
    unversioned = copy.deepcopy(changed)
    del unversioned["metadata"]["resourceVersion"]
    unversioned["spec"]["pool"]["generation"] += 1
    now = await look("change without a version", "PUT", f"{SLICES}/d1", unversioned)
    assert now is not None
    foreign = copy.deepcopy(now)
    foreign["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
    await look("change another one of the name", "PUT", f"{SLICES}/d1", foreign)
    for path, value in ((("spec", "driver"), "x.example.com"), (("spec", "nodeName"), "other")):
        fixed = copy.deepcopy(now)
        fixed[path[0]][path[1]] = value
        await look(f"change {path[1]}", "PUT", f"{SLICES}/d1", fixed)
    await look("change none", "PUT", f"{SLICES}/none", _named("none"))
    node = now["spec"]["nodeName"]
    for selector in (
        f"spec.nodeName={node}",
        "spec.nodeName=another",
        f"spec.driver={now['spec']['driver']}",
        "metadata.name=d1",
    ):
        listed = await look(f"list {selector}", "GET", f"{SLICES}?fieldSelector={selector}")
        seen[f"list {selector}"] = sorted(
            "GEN" if each["metadata"]["name"] == name else each["metadata"]["name"] for each in (listed or {})["items"]
        )
    await look("list by a field that cannot be selected", "GET", f"{SLICES}?fieldSelector=spec.foo=x")
    for what, conditions in (
        ("uid", {"uid": "11111111-2222-3333-4444-555555555555"}),
        ("version", {"resourceVersion": made["metadata"]["resourceVersion"]}),
    ):
        await look(f"delete by another {what}", "DELETE", f"{SLICES}/d1", _options(conditions))
    right = {"uid": now["metadata"]["uid"], "resourceVersion": now["metadata"]["resourceVersion"]}
    await look("delete", "DELETE", f"{SLICES}/d1", _options(right))
    await look("delete again", "DELETE", f"{SLICES}/d1")
    await look("delete the collection of no node", "DELETE", f"{SLICES}?fieldSelector=spec.nodeName=another")
    await look("it is still there", "GET", f"{SLICES}/{name}")
    await look("delete the collection", "DELETE", f"{SLICES}?fieldSelector=spec.nodeName={node}")
    await look("it is gone", "GET", f"{SLICES}/{name}")
    seen["it is gone"] = seen["it is gone"].replace(name, "GEN").replace(plain(name), "GEN")
    return seen


def _options(preconditions: Object) -> Object:
    return {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}


async def claim_observations(ask: Ask, namespace: str) -> dict[str, Any]:
    """Play claims: a status that is sent with a new claim, allocation, the status of devices."""
    seen: dict[str, Any] = {}
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    claim = objects.claim("c", namespace=namespace)
    claim["status"] = {"allocation": objects.allocation([objects.result(DRIVER, "d0")])}
    seen["create"], made = await _seen(ask, "POST", path, claim)
    assert made is not None
    seen["status of a new claim"] = (made.get("status") or {}).get("allocation")
    made["status"] = {"allocation": objects.allocation([objects.result(DRIVER, "d0")])}
    seen["allocate"], allocated = await _seen(ask, "PUT", f"{path}/c/status", made)
    assert allocated is not None
    seen["allocation"] = allocated["status"]["allocation"]["devices"]["results"]
    seen["with an old version"], _ = await _seen(ask, "PUT", f"{path}/c/status", made)
    for device in ("d0", "d1"):
        told = copy.deepcopy(allocated)
        told["status"]["devices"] = [{"driver": DRIVER, "pool": "node0", "device": device, "data": {"serial": 1}}]
        seen[f"status of {device}"], after = await _seen(ask, "PUT", f"{path}/c/status", told)
        if after is not None:
            seen[f"devices with {device}"] = after["status"]["devices"]
            allocated = after
    seen["get none"], _ = await _seen(ask, "GET", f"{path}/none")
    return {f"claim, {what}": value for what, value in seen.items()}


class Node(Protocol):
    """What plays pods: the simulated kubelet or a real one."""

    async def make_claim(self, name: str, skips: Sequence[str] = ()) -> None:
        """Have an allocated claim, whose result lists these as ``skipNodeOperations``."""

    async def start(self, pod: str, *claims: str) -> list[str]:
        """Start a pod; return the devices in it."""
        ...

    async def fails(self, pod: str, *claims: str) -> str:
        """Start a pod that cannot start, and return why not."""
        ...

    async def stop(self, pod: str) -> None:
        """End a pod; returns when it is gone."""

    async def restart(self) -> None:
        """Kill the kubelet and start it; returns when the driver is registered again."""


async def kubelet_observations(node: Node, driver: RecordingDriver) -> dict[str, Any]:
    """Play claims and pods with a kubelet, and return what the driver and the pods saw."""
    seen: dict[str, Any] = {"notified": list(driver.notified)}

    def since() -> list[str]:
        # A pod that fails is tried again: equal calls in a row count once.
        calls = [
            call for index, call in enumerate(driver.methods()) if not index or call != driver.methods()[index - 1]
        ]
        driver.calls.clear()
        return calls

    # Each pod has claims of its own: a claim that nobody uses any more loses its allocation.
    for name in ("a", "b", "s", "error", "skipped", "invented", "r"):
        await node.make_claim(name)
    seen["two claims"] = await node.start("two", "a", "b"), since()
    await node.stop("two")
    seen["its end"] = since()
    seen["shared, first"] = await node.start("first", "s"), since()
    seen["shared, second"] = await node.start("second", "s"), since()
    await node.stop("first")
    seen["shared, first ends"] = since()
    await node.stop("second")
    seen["shared, second ends"] = since()
    for what, change in (
        ("error", {"errors": {"NodePrepareResources error": "it burns"}}),
        ("skipped", {"skipped": {"skipped"}}),
        ("invented", {"invents": True}),
    ):
        for name, value in change.items():
            setattr(driver, name, value)
        seen[what] = await node.fails(what, what), since()
        driver.errors, driver.skipped, driver.invents = {}, set(), False
        await node.stop(what)
        seen[f"{what}, its end"] = since()
    seen["before the restart"] = await node.start("long", "r"), since()
    await node.restart()
    seen["second pod after the restart"] = await node.start("late", "r"), since()
    await node.stop("late")
    await node.stop("long")
    seen["after the restart"] = since()
    return seen


async def skipping_observations(node: Node, driver: RecordingDriver) -> dict[str, Any]:
    """Play claims of which calls are left out, with the gate of that on."""
    seen: dict[str, Any] = {}
    for name, skips in (
        ("none", ()),
        ("all", ("*",)),
        ("both", ("NodePrepareResources", "NodeUnprepareResources")),
        ("unprepare", ("NodeUnprepareResources",)),
    ):
        driver.calls.clear()
        await node.make_claim(name, skips)
        given = await node.start(name, name)
        await node.stop(name)
        seen[name] = given, driver.methods()
    await node.make_claim("kept", ("*",))
    await node.start("before", "kept")
    await node.restart()
    driver.calls.clear()
    seen["after a restart"] = await node.start("after", "kept"), driver.methods()
    for pod in ("before", "after"):
        await node.stop(pod)
    seen["its end"] = driver.methods()
    return seen
