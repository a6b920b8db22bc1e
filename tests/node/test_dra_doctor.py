"""`kdp doctor` in a driver's container, in a real cluster: what keeps claims from their devices, and what mends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .backend import Figure
from .conftest import Namespace
from .nodekit.cluster import Object
from .test_dra_manifests import CLUSTERS_OWN, DRIVER, lacking, template, until_published, user, written
from .test_manifests import Plugin, deployed, impatient

__all__ = ["written"]  # a fixture


async def answers(plugin: Plugin) -> dict[str, dict[str, Any]]:
    found = json.loads(await plugin.exec("sh", "-c", "kdp doctor --format json || true"))
    return {each["id"]: each for each in found["questions"]}


async def until_answered(plugin: Plugin, question: str, answer: str) -> dict[str, Any]:
    """Wait until the doctor gives this answer, and return it."""
    last: dict[str, Any] = {}

    async def is_so() -> bool:
        nonlocal last
        last = (await answers(plugin))[question]
        return bool(last["answer"] == answer)

    await plugin.cluster.until(is_so, f"{question} is answered {answer}", every=0.5, seconds=120.0)
    return last


def roomy(documents: list[Object]) -> list[Object]:
    """Return a manifest whose container has memory for the API server's client, too."""
    changed = impatient(documents)
    [container] = changed[-1]["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"]["memory"] = "256Mi"
    return changed


def readers(documents: list[Object]) -> list[Object]:
    """Return what lets the driver's account read classes and claims."""
    [account] = [each for each in documents if each["kind"] == "ServiceAccount"]
    name = f"{account['metadata']['name']}-reader"
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses", "resourceclaims"], "verbs": ["list"]}
    subject = {"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}}
    metadata = {"name": name}
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "subjects": [subject],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
    }
    return [role, binding]


async def test_a_driver_in_order_then_without_its_class_and_with_a_claim_that_waits(
    namespace: Namespace, generic_image: Path, written: list[Object], figure: Figure
) -> None:
    extra = readers(written)
    async with deployed(namespace, generic_image, [*extra, *roomy(written)]) as plugin:
        try:
            await plugin.until_ready()
            await until_published(plugin)
            for question in ("dra-published", "dra-fields", "dra-permissions", "dra-class", "dra-claims", "plugin"):
                await until_answered(plugin, question, "ok")
            greedy = template()
            greedy["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 4  # there are 3
            await plugin.cluster.apply(greedy, user("waits", by_claim=True), namespace=namespace.name)
            waits = await until_answered(plugin, "dra-claims", "warning")
            assert f"1 claim without devices: {namespace.name}/waits-fuse-" in waits["seen"]
            assert waits["remedy"].endswith(f"kubectl -n {namespace.name} describe pod waits")
            await plugin.cluster.delete(CLUSTERS_OWN["DeviceClass"], DRIVER)
            without = await until_answered(plugin, "dra-class", "failed")
            assert without["seen"] == f"no DeviceClass selects the devices of {DRIVER}"
        finally:
            for document in extra:
                await plugin.cluster.delete(CLUSTERS_OWN[document["kind"]], document["metadata"]["name"])


async def test_a_driver_whose_account_may_not_read_classes_is_not_asked_about_them(
    namespace: Namespace, generic_image: Path, written: list[Object]
) -> None:
    async with deployed(namespace, generic_image, roomy(written)) as plugin:
        await plugin.until_ready()

        async def is_left_out() -> bool:  # a busy API server may not answer in time
            return not {"dra-class", "dra-claims"} & (await answers(plugin)).keys()

        await plugin.cluster.until(is_left_out, "the questions are left out", every=0.5, seconds=120.0)


def forbidding(documents: list[Object]) -> list[Object]:
    """Return a manifest whose policy refuses each slice."""
    changed = impatient(documents)
    policies = [each for each in changed if each["kind"] == "ValidatingAdmissionPolicy"]
    [policy] = [each for each in policies if "resourceslices" in str(each["spec"]["matchConstraints"])]
    policy["spec"]["validations"] = [{"expression": "false", "message": "no slices today"}]
    return changed


@pytest.mark.parametrize(
    ("way", "seen", "remedy"),
    [
        ("role", "a role must grant the verb 'create' on 'resourceslices'", "apply the ClusterRole and its binding"),
        ("policy", "no slices today", "see which policy refuses"),
    ],
)
async def test_slices_that_are_refused(
    namespace: Namespace, generic_image: Path, written: list[Object], way: str, seen: str, remedy: str
) -> None:
    documents = lacking(written, "create resourceslices") if way == "role" else forbidding(written)
    async with deployed(namespace, generic_image, documents) as plugin:
        await plugin.until_said(seen)
        found = await answers(plugin)
        assert found["dra-permissions"]["answer"] == found["dra-published"]["answer"] == "failed"
        assert seen in found["dra-permissions"]["seen"]
        assert found["dra-permissions"]["remedy"].startswith(remedy)
