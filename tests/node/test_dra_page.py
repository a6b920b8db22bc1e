"""docs/how-to/use-claims.md in a real cluster: its class as the node's driver, and each of its claims with a pod."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import yaml
from tests.docs.blocks import ROOT, blocks_of

from .conftest import Namespace
from .nodekit import Cluster
from .nodekit.cluster import NODE
from .nodekit.machine import IMAGE

PAGE = ROOT / "docs/how-to/use-claims.md"
FILES = {block.marks["file"]: block.text for block in blocks_of(PAGE) if "file" in block.marks}
GIVES = {
    "one-fan": {"FAN0"},
    "large-or-small": {"WHOLE0"},
    "both-halves": {"HALF0", "HALF1"},
    "four-of-the-link": {"LINK0"},
    "all-fans": {"FAN0", "FAN1"},
    "a-drive": {"DRIVE0"},
    "looks-at-fans": {"FAN0", "FAN1"},
}
"""The devices of each claim."""

COUNT = 7
PROCESS = "dra-page"
CLAIMS = "resource.k8s.io/v1/resourceclaims"
SLICES = "resource.k8s.io/v1/resourceslices"
Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    """Return what is in a file of the page; its pods have an image that is there."""
    found = [*yaml.safe_load_all(FILES[name])]
    for pod in found:
        if pod.get("kind") == "Pod":
            pod["spec"] |= {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
            for container in pod["spec"]["containers"]:
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return found


@attrs.frozen
class Page:
    """What a test does in its namespace."""

    cluster: Cluster
    namespace: str

    async def claim(self, name: str, pod: str | None = None) -> str:
        """Apply a claim and a pod with it, and return the pod's name."""
        [asks_for_one] = objects("pod.yaml")
        asks_for_one["metadata"]["name"] = pod or name
        asks_for_one["spec"]["resourceClaims"][0]["resourceClaimName"] = name
        await self.cluster.apply(*objects(f"{name}.yaml"), asks_for_one, namespace=self.namespace)
        return pod or name

    async def cards_of(self, pod: str) -> set[str]:
        """Wait until a pod runs, and return which cards are in it."""
        await self.cluster.until_pod(pod, "Running", namespace=self.namespace)
        said = await self.cluster.until_said(pod, "CARD_", namespace=self.namespace)
        return {line.partition("=")[0].removeprefix("CARD_") for line in said.splitlines()}

    async def until_claim(self, name: str, condition: Callable[[Object], object], what: str) -> None:
        await self.cluster.until_object(CLAIMS, name, condition, what, namespace=self.namespace)


@pytest.fixture(scope="module")
async def driver(shared_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The page's class as the driver of the node, and its class of devices."""
    cluster = shared_cluster
    file = cluster.work / "run/cards.py"
    file.write_text(FILES["cards.py"])
    await cluster.apply(*objects("class.yaml"))
    options = ["--mode=dra", f"--node-name={NODE}", f"--kubeconfig={cluster.work}/admin.kubeconfig"]
    options += ["--health-taint=NoExecute", "--device-status=on"]
    await cluster.spawn(PROCESS, sys.executable, "-m", "kdp", "run", f"{file}:Cards", *options)

    async def is_published() -> bool:
        slices = [each for each in await cluster.list(SLICES) if each["spec"]["driver"] == "card.example.com"]
        return sum(len(each["spec"].get("devices", ())) for each in slices) == COUNT

    try:
        await cluster.until(is_published, lambda: f"{COUNT} devices are published: {cluster.log(PROCESS)}", every=0.05)
        yield cluster
    finally:
        await cluster.kill(PROCESS)
        await cluster.clear_published()


@pytest.fixture
def page(driver: Cluster, namespace: Namespace) -> Page:
    return Page(driver, namespace.name)


def test_every_claim_of_the_page_is_here() -> None:
    kinds = {name: [each.get("kind") for each in objects(name)] for name in FILES if name.endswith(".yaml")}
    assert {name.removesuffix(".yaml") for name, kind in kinds.items() if kind == ["ResourceClaim"]} == set(GIVES)


@pytest.mark.parametrize("name", sorted({*GIVES} - {"a-drive", "looks-at-fans"}))
async def test_a_claim_gives_what_it_says(page: Page, name: str) -> None:
    assert await page.cards_of(await page.claim(name)) == GIVES[name]


async def test_the_second_best_is_taken_when_the_counters_are_used_up(page: Page) -> None:
    halves = objects("both-halves.yaml")
    halves[0]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 1
    [pod] = objects("pod.yaml")
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "both-halves"
    await page.cluster.apply(*halves, pod, namespace=page.namespace)
    assert await page.cards_of("uses-cards") == {"HALF0"}
    assert await page.cards_of(await page.claim("large-or-small")) == {"HALF1"}


async def test_a_pod_waits_for_its_drive_until_the_patch_of_the_page_says_that_it_is_attached(page: Page) -> None:
    await page.claim("a-drive")
    await page.until_claim("a-drive", lambda it: (it.get("status") or {}).get("allocation"), "is allocated")
    patch = page.cluster.work / "run/attached.yaml"
    patch.write_text(FILES["attached.yaml"])
    await page.cluster.kubectl(
        *("patch", "resourceclaim", "a-drive", f"--namespace={page.namespace}", "--subresource=status"),
        *("--type=merge", f"--patch-file={patch}"),
    )
    assert await page.cards_of("a-drive") == GIVES["a-drive"]

    def says_both(claim: Object) -> bool:
        [entry] = claim["status"]["devices"]
        return [each["type"] for each in entry["conditions"]] == ["example.com/attached", "Ready"]

    await page.until_claim("a-drive", says_both, "says that its drive is attached, and ready")


async def test_admin_access_looks_at_what_others_have(page: Page) -> None:
    assert await page.cards_of(await page.claim("all-fans")) == GIVES["all-fans"]
    label = "resource.kubernetes.io/admin-access=true"
    await page.cluster.kubectl("label", "namespace", page.namespace, label)
    assert await page.cards_of(await page.claim("looks-at-fans")) == GIVES["looks-at-fans"]

    # What the page says of the effect, and that the pods of its own claims stay: they came first.
    [claim], [pod] = objects("looks-at-fans.yaml"), objects("pod.yaml")
    claim["metadata"]["name"] = pod["metadata"]["name"] = "names-no-effect"
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "names-no-effect"
    del claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"][0]["effect"]
    await page.cluster.apply(claim, pod, namespace=page.namespace)

    async def is_evicted() -> bool:
        events = await page.cluster.list("v1/events", namespace=page.namespace)
        return ("names-no-effect", "DeviceTaintManagerEviction") in {
            (each["involvedObject"]["name"], each["reason"]) for each in events
        }

    await page.cluster.until(is_evicted, "the pod whose claim names no effect is evicted", every=0.05)
    for name in ("all-fans", "looks-at-fans"):
        stays = await page.cluster.get("v1/pods", name, namespace=page.namespace)
        assert stays is not None
        assert "deletionTimestamp" not in stays["metadata"], f"{name} is evicted as well"


async def test_a_pod_that_knows_limits_only_has_half_a_card(page: Page) -> None:
    await page.cluster.apply(*objects("extended.yaml"), namespace=page.namespace)
    assert await page.cards_of("knows-limits-only") <= GIVES["both-halves"]
