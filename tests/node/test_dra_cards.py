"""What DRA can do besides whole devices, in a real cluster: a driver with devices of every kind (`dra_cards`)."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from kdp.admin.manifests import cluster as manifests

from .conftest import Namespace
from .deploy import DEVICES, Nodes, device_class
from .nodekit import Cluster
from .test_dra import CLAIMS, PROGRAM, SLICES, Object, claim, pod

DRIVER = "card.example.com"
CARDS = Path(__file__).with_name("dra_cards.py")
COUNT = 7


def is_kind(kind: str) -> list[Object]:
    """Return what selects devices of a kind; other drivers' devices have none, and to ask them for it is an error."""
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{kind}"'
    return [{"cel": {"expression": expression}}]


def asks(kind: str, **more: object) -> Object:
    """Return what a claim asks for, one request ``c``."""
    exactly = {"deviceClassName": "card", "selectors": is_kind(kind), **more}
    return {"devices": {"requests": [{"name": "c", "exactly": exactly}]}}


@attrs.define
class Driver:
    """The driver of this file's tests, and what a test does in its namespace."""

    cluster: Cluster
    namespace: str = ""

    async def start(self, name: str, spec: Object) -> None:
        """Have a claim and a pod of this name that uses it."""
        await self.cluster.apply(claim(name, spec), pod(name, resourceClaimName=name), namespace=self.namespace)

    async def run(self, name: str, spec: Object) -> list[str]:
        """Have a claim and a pod of this name that uses it, and return which devices are in it when it runs."""
        await self.start(name, spec)
        return await self.until_running(name)

    async def until_running(self, name: str) -> list[str]:
        """Wait until a pod runs, and return which devices are in it."""
        said = await self.cluster.until_said(name, "end", namespace=self.namespace)
        await self.cluster.until_pod(name, "Running", namespace=self.namespace)
        return [line.partition("=")[0].removeprefix("CARD_") for line in said.splitlines() if line.startswith("CARD_")]

    async def until_left_out(self, name: str) -> None:
        """Wait until the scheduler has said that there is no device for a pod."""

        def is_told(found: Object) -> bool:
            return "cannot allocate all claims" in json.dumps(found["status"].get("conditions", ()))

        await self.cluster.until_object("v1/pods", name, is_told, "finds no device", namespace=self.namespace)

    async def delete(self, name: str) -> None:
        """Delete a pod and its claim."""
        await self.cluster.delete("v1/pods", name, namespace=self.namespace)
        await self.cluster.delete(CLAIMS, name, namespace=self.namespace)

    async def claim(self, name: str) -> Object:
        found = await self.cluster.get(CLAIMS, name, namespace=self.namespace)
        assert found is not None
        return found

    async def until_claim(self, name: str, condition: Callable[[Object], object], what: str) -> Object:
        return await self.cluster.until_object(CLAIMS, name, condition, what, namespace=self.namespace)

    def calls(self, *claims: str) -> list[tuple[Any, ...]]:
        """Return what the backend was told of these claims: hook, claim, request, devices."""
        return [(c["hook"], c["claim"], c["request"], *c["devices"]) for c in self.told() if c["claim"] in claims]

    def told(self) -> list[Object]:
        """Return all that the backend was told."""
        lines = self.cluster.log("dra-cards").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def has_spec(self, name: str) -> bool:
        """Whether the runtime finds the devices of a claim."""
        uid = (await self.claim(name))["metadata"]["uid"]
        return any(uid in file.name for file in (self.cluster.work / "run/cdi").iterdir())


@pytest.fixture(scope="module")
async def cards(shared_cluster: Cluster) -> AsyncIterator[Driver]:
    """The driver of all tests of this file."""
    cluster = shared_cluster
    folder = cluster.work / "run/cards"
    folder.mkdir()
    await cluster.apply(device_class("card", DRIVER))
    await cluster.spawn("dra-cards", sys.executable, CARDS, folder)

    async def is_published() -> bool:
        slices = [each for each in await cluster.list(SLICES) if each["spec"]["driver"] == DRIVER]
        return sum(len(each["spec"].get("devices", ())) for each in slices) == COUNT

    try:
        await cluster.until(is_published, f"{COUNT} devices are published", every=0.05)
        yield Driver(cluster)
    finally:
        await cluster.kill("dra-cards")
        await cluster.clear_published()


@pytest.fixture
async def driver(namespace: Namespace, cards: Driver) -> Driver:
    return Driver(cards.cluster, namespace.name)


async def test_admin_access_has_a_busy_device_and_disturbs_nobody(driver: Driver) -> None:
    assert await driver.run("owner", asks("fan", allocationMode="All")) == ["fan0", "fan1"]
    admin = asks("fan", allocationMode="All", adminAccess=True)
    with pytest.raises(RuntimeError, match="admin access to devices requires the `resource"):
        await driver.start("admin", admin)
    label = "resource.kubernetes.io/admin-access=true"
    await driver.cluster.kubectl("label", "namespace", driver.namespace, label)
    assert await driver.run("admin", admin) == ["fan0", "fan1"]
    told = {each["claim"]: each["admin"] for each in driver.told()}
    assert (told["owner"], told["admin"]) == (False, True)

    await driver.delete("admin")
    fans = ("c", "fan0", "fan1")
    await driver.cluster.until(lambda: ("released", "admin", *fans) in driver.calls("admin"), "it is released")
    assert driver.calls("owner") == [("allocate", "owner", *fans)]
    assert await driver.has_spec("owner")


async def test_a_pod_that_asks_for_a_card_gets_no_half(driver: Driver) -> None:
    """The one DeviceClass that was written selected the driver only."""
    written = manifests.Cluster(driver=DRIVER, resource="example.com/card", others=("example.com/half",))
    documents = manifests.cluster_objects("cards", written, driver.namespace)
    await driver.cluster.apply(*(each for each in documents if each["kind"] == "DeviceClass"))

    def of_class(name: str, **more: object) -> Object:
        return {"devices": {"requests": [{"name": "c", "exactly": {"deviceClassName": name, **more}}]}}

    assert await driver.run("halves", of_class("half.example.com", allocationMode="All")) == ["half0", "half1"]
    await driver.delete("halves")
    await driver.start("half", of_class("card.example.com", selectors=is_kind("half")))
    await driver.until_left_out("half")
    assert await driver.run("fan", of_class("card.example.com", selectors=is_kind("fan"))) == ["fan0"]


async def test_a_prioritized_list_takes_what_the_counters_leave(driver: Driver) -> None:
    choices = [
        {"name": name, "deviceClassName": "card", "selectors": is_kind(kind)}
        for name, kind in (("large", "whole"), ("small", "half"))
    ]
    either = {"devices": {"requests": [{"name": "c", "firstAvailable": choices}]}}
    assert await driver.run("first", either) == ["whole0"]
    await driver.start("second", asks("half"))
    await driver.until_left_out("second")
    await driver.delete("first")
    assert await driver.until_running("second") == ["half0"]
    assert await driver.run("third", either) == ["half1"]
    assert driver.calls("first", "second", "third") == [
        ("allocate", "first", "c/large", "whole0"),
        ("released", "first", "c/large", "whole0"),
        ("allocate", "second", "c", "half0"),
        ("allocate", "third", "c/small", "half1"),
    ]


async def test_shares_of_a_device_come_and_go_apart(driver: Driver) -> None:
    def bandwidth(amount: int) -> Object:
        return asks("link", capacity={"requests": {"bandwidth": str(amount)}})

    for name in ("one", "other"):
        assert await driver.run(name, bandwidth(4)) == ["link0"]
    await driver.start("late", bandwidth(4))
    await driver.until_left_out("late")
    assert await driver.run("rest", asks("link")) == ["link0"]
    given = {each["claim"]: each for each in driver.told() if each["claim"] in ("one", "other", "rest")}
    assert {name: each["consumed"]["link0"]["bandwidth"] for name, each in given.items()} == {
        "one": "4",
        "other": "4",
        "rest": "1",
    }
    shares = {name: each["shares"]["link0"] for name, each in given.items()}
    assert len(set(shares.values())) == 3

    def is_ready(found: Object) -> bool:
        [entry] = found["status"].get("devices") or [{}]
        return bool(entry.get("shareID") == shares["other"] and entry["conditions"][0]["type"] == "Ready")

    found = await driver.until_claim("other", is_ready, "says that its share is ready")
    assert found["status"]["devices"][0]["networkData"] == {
        "interfaceName": "net1",
        "ips": ["192.0.2.5/24", "2001:db8::5/64"],
        "hardwareAddress": "52:54:00:12:34:56",
    }
    await driver.delete("one")
    assert await driver.until_running("late") == ["link0"]
    [released] = [each for each in driver.told() if each["hook"] == "released" and each["claim"] == "one"]
    assert released["shares"] == {"link0": shares["one"]}
    assert await driver.has_spec("other")


async def test_a_sick_device_evicts_the_pods_that_do_not_tolerate_it(driver: Driver) -> None:
    taint = f"{DRIVER}/unhealthy"
    tolerates = [{"key": taint, "operator": "Exists", "effect": "NoExecute"}]
    assert await driver.run("goes", asks("fan")) == ["fan0"]
    assert await driver.run("stays", asks("fan", tolerations=tolerates)) == ["fan1"]
    sick = driver.cluster.work / "run/cards/sick"
    sick.write_text("fan0 fan1")
    try:

        async def is_gone() -> bool:
            return await driver.cluster.get("v1/pods", "goes", namespace=driver.namespace) is None

        await driver.cluster.until(is_gone, "the pod is evicted", every=0.05)

        def is_told(found: Object) -> bool:
            [container] = found["status"]["containerStatuses"]
            told = [each for status in container.get("allocatedResourcesStatus", ()) for each in status["resources"]]
            return any(each.get("health") == "Unhealthy" and each.get("message") == "it rattles" for each in told)

        await driver.cluster.until_object(
            "v1/pods", "stays", is_told, "tells that its device is sick", namespace=driver.namespace
        )
        assert (await driver.cluster.until_pod("stays", "Running", namespace=driver.namespace))["spec"]["nodeName"]

        async def is_said() -> bool:
            events = await driver.cluster.list("v1/events", namespace=driver.namespace)
            evictions = [each for each in events if each["reason"] == "DeviceTaintManagerEviction"]
            return {each["involvedObject"]["name"] for each in evictions} == {"goes"}

        await driver.cluster.until(is_said, "an event says which pod is evicted", every=0.05)
        assert driver.calls("goes")[-1] == ("released", "goes", "c", "fan0")
        assert await driver.run("tolerant", asks("fan", tolerations=tolerates)) == ["fan0"]
    finally:
        sick.unlink()


async def test_a_pod_waits_until_its_device_is_attached(driver: Driver) -> None:
    await driver.start("attached", asks("drive"))
    found = await driver.until_claim(
        "attached", lambda found: (found.get("status") or {}).get("allocation"), "is allocated"
    )
    [result] = found["status"]["allocation"]["devices"]["results"]
    assert result["bindingConditions"] == ["example.com/attached"]
    waiting = await driver.cluster.get("v1/pods", "attached", namespace=driver.namespace)
    assert waiting is not None
    assert "nodeName" not in waiting["spec"]
    assert driver.calls("attached") == []

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    attached = {"type": "example.com/attached", "status": "True", "reason": "Here", "lastTransitionTime": now}
    place = {name: result[name] for name in ("driver", "pool", "device")}
    found["status"]["devices"] = [{**place, "conditions": [{**attached, "message": ""}]}]
    path = f"/apis/resource.k8s.io/v1/namespaces/{driver.namespace}/resourceclaims/attached/status"
    await driver.cluster.api("PUT", path, found)
    assert await driver.until_running("attached") == ["drive0"]

    def is_ready(found: Object) -> bool:
        [entry] = found["status"]["devices"]
        return [each["type"] for each in entry["conditions"]] == ["example.com/attached", "Ready"]

    await driver.until_claim("attached", is_ready, "has the fabric's condition and the driver's")


async def test_two_drivers_and_an_extended_resource_in_one_pod(driver: Driver) -> None:
    cluster = driver.cluster
    nodes = Nodes(cluster.work / "run/widgets", "w0", "w1")
    widgets = {"selectors": [{"cel": {"expression": 'device.driver == "widget.example.com"'}}]}
    halves = {"selectors": is_kind("half"), "extendedResourceName": "example.com/half"}
    await cluster.apply(
        *(
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
            for name, spec in (("widget", widgets), ("half", halves))
        )
    )
    await cluster.spawn("dra-widgets", sys.executable, PROGRAM, DEVICES)
    try:
        spec = asks("fan")
        spec["devices"]["requests"].append({"name": "w", "exactly": {"deviceClassName": "widget"}})
        both = pod("both", resourceClaimName="both")
        both["spec"]["containers"][0]["resources"]["limits"] = {"example.com/half": 1}
        await cluster.apply(claim("both", spec), both, namespace=driver.namespace)
        assert await driver.until_running("both") == ["fan0", "half0"]
        said = await cluster.until_said("both", "end", namespace=driver.namespace)
        assert {"opened /dev/w0", "WIDGET_0=given"} <= set(said.splitlines())
        assert driver.calls("both") == [("allocate", "both", "c", "fan0")]
        assert "allocate both w w0" in cluster.log("dra-widgets")
        await cluster.delete("v1/pods", "both", namespace=driver.namespace)
        assert driver.calls("both")[1:] == [("released", "both", "c", "fan0")]
        assert "released both w w0" in cluster.log("dra-widgets")
    finally:
        await cluster.clear_pods(driver.namespace)
        await cluster.kill("dra-widgets")
        nodes.clear()
