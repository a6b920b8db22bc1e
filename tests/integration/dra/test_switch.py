"""A node that is switched from a device plugin to the driver while a pod still holds a device of the plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.cluster.client import KubeApi
from kdp.deviceplugin import manager as manager_module
from kdp.dra import plugin as dra_plugin
from kdp.dra import plugin_holders
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.kubelet import KubeletPaths
from kdp.testing import AdmissionError, Pod, SimulatedKubelet
from kdp_testkit.dra import objects
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraPod, PodStartError
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import connected, until

RESOURCE = "example.com/card"
DRIVER = "card.example.com"


class Cards(kdp.DeviceBackend):
    """Two cards, which only a variable names."""

    resource = RESOURCE
    poll_interval = 0.1
    ids: tuple[str, ...] = ("card-0", "card-1")

    @override
    def discover(self) -> Iterable[kdp.Device]:
        return [kdp.Device(id=each, edits=kdp.ContainerEdits(env={"CARD": each})) for each in self.ids]


@asynccontextmanager
async def driving(
    backend: kdp.DeviceBackend, held: SimulatedKubelet, folder: Path, **options: Any
) -> AsyncIterator[tuple[SimulatedApiServer, SimulatedDraKubelet]]:
    """Run the driver on the node of a kubelet that has pods of a device plugin."""
    async with SimulatedApiServer() as server, SimulatedDraKubelet(server.ask) as kubelet:
        await server.ask("POST", "/api/v1/nodes", objects.node())
        paths = attrs.evolve(KubeletPaths.under(kubelet.root), pod_resources_dir=held.paths.pod_resources_dir)
        async with KubeApi(write_kubeconfig(folder, server.url)) as api:
            made = DriverOptions(api=api, node="node0", paths=paths, cdi=folder / "cdi", **options)
            async with DraDriver([backend], made):
                await kubelet.until_registered(DRIVER)
                yield server, kubelet


async def taints(server: SimulatedApiServer) -> dict[str, list[str]]:
    """Return the effects of the taints of each published device."""
    found: dict[str, list[str]] = {}
    for each in (await server.ask("GET", objects.SLICES))["items"]:
        for device in each["spec"].get("devices", []):
            found[device["name"]] = [taint["effect"] for taint in device.get("taints", [])]
    return found


async def until_taints(server: SimulatedApiServer, wanted: dict[str, list[str]]) -> None:
    with anyio.fail_after(PATIENCE):
        while await taints(server) != wanted:  # noqa: ASYNC110 - the API server tells nobody
            await anyio.sleep(0.02)


async def start(
    server: SimulatedApiServer, kubelet: SimulatedDraKubelet, device: str, *, driver: str = DRIVER, suffix: str = ""
) -> DraPod:
    """Start a pod whose claim has a device, and return the pod."""
    name = f"{driver.partition('.')[0]}-{device}{suffix}"
    pod = DraPod(name=f"pod-{name}", claims={"card": f"claim-{name}"})
    await objects.allocated_claim(server.ask, f"claim-{name}", [objects.result(driver, device)], pods=[pod])
    await kubelet.start_pod(pod)
    return pod


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_holders, "PERIOD", 0.1)
    monkeypatch.setattr(manager_module, "LOOK_PAUSE", 0.1)
    monkeypatch.setattr(dra_plugin, "LOOK_PAUSE", 0.1)


@pytest.mark.parametrize("effect", ["NoExecute", None])
async def test_a_claim_got_the_device_of_a_pod_that_the_drain_left(effect: str | None, tmp_path: Path) -> None:
    """A drain does not evict the pods of a DaemonSet."""
    async with SimulatedKubelet() as held:
        async with connected(held, Cards(), state_dir=tmp_path / "state"):
            pod = await held.admit(Pod.asking({RESOURCE: 1}))
            [mine] = pod.devices(RESOURCE)
        [other] = {"card-0", "card-1"} - {mine}
        async with driving(Cards(), held, tmp_path, health_taint=effect) as (server, kubelet):
            await until_taints(server, {mine: ["NoSchedule"], other: []})
            with pytest.raises(PodStartError, match=f"held as {mine} of {RESOURCE} by {pod.pod.namespace}/"):
                await start(server, kubelet, mine)
            await start(server, kubelet, other)
            await held.delete(pod.pod)
            await until_taints(server, {mine: [], other: []})


@pytest.mark.parametrize("resource", [RESOURCE, "other.com/card"])
async def test_ids_of_another_plugin_may_be_any_device(resource: str, tmp_path: Path) -> None:
    class Theirs(Cards):
        ids = ("0000:3b:00.0",)

    theirs = Theirs()
    theirs.resource = resource
    async with SimulatedKubelet() as held:
        async with connected(held, theirs, state_dir=tmp_path / "state"):
            pod = await held.admit(Pod.asking({resource: 1}))
        async with driving(Cards(), held, tmp_path, replaces=("other.com/card",)) as (server, _):
            await until_taints(server, {"card-0": ["NoSchedule"], "card-1": ["NoSchedule"]})
            await held.delete(pod.pod)
            await until_taints(server, {"card-0": [], "card-1": []})


class Moved(Cards):
    """The cards by other ids, each with a node."""

    ids = ("serial-0", "serial-1")
    nodes = ("/dev/null", "/dev/zero")

    @override
    def discover(self) -> Iterable[kdp.Device]:
        pairs = zip(self.ids, self.nodes, strict=True)
        return [kdp.Device(id=each, edits=kdp.ContainerEdits.of_node(node)) for each, node in pairs]


class Before(Moved):
    ids = ("card-0", "card-1")


@pytest.mark.parametrize(("before", "now"), [(Cards(), Cards()), (Before(), Moved()), (Before(), Before())])
async def test_the_plugin_after_a_driver_gave_a_claims_device_to_a_pod(
    before: Cards, now: Cards, tmp_path: Path
) -> None:
    """Before, the plugin did not see claims, and the how-to asked the administrator to end all pods with claims."""
    async with SimulatedKubelet() as kubelet, driving(before, kubelet, tmp_path) as (server, claims):
        await until_taints(server, {"card-0": [], "card-1": []})
        pod = await start(server, claims, "card-0")
        paths = attrs.evolve(kubelet.paths, plugins_dir=claims.plugins)
        mine, other = now.ids
        async with connected(kubelet, now, paths=paths, state_dir=tmp_path / "state") as manager:

            def reasons() -> dict[str, str | None]:
                listed = manager.status().resources[RESOURCE].listed
                return {device_id: device.health.reason for device_id, device in listed.items()}

            assert reasons() == {
                mine: f"held as card-0 of {DRIVER} by claim default/claim-card-card-0",
                other: None,
            }
            admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
            assert admitted.devices(RESOURCE) == (other,)
            with pytest.raises(AdmissionError):
                await kubelet.admit(Pod.asking({RESOURCE: 1}))
            await claims.stop_pod(pod)
            await until(lambda: reasons() == {mine: None, other: None})


async def test_a_driver_with_another_name_gave_the_device_of_a_claim_to_another(tmp_path: Path) -> None:
    renamed, free = "accelerator.example.com", {"card-0": list[str](), "card-1": list[str](), "serial-1": list[str]()}
    async with SimulatedKubelet() as kubelet, driving(Before(), kubelet, tmp_path) as (server, claims):
        await until_taints(server, {"card-0": [], "card-1": []})
        pod = await start(server, claims, "card-0")
        paths = attrs.evolve(KubeletPaths.under(claims.root), pod_resources_dir=kubelet.paths.pod_resources_dir)
        async with KubeApi(write_kubeconfig(tmp_path, server.url)) as api:
            options = DriverOptions(api=api, node="node0", paths=paths, cdi=tmp_path / "cdi", name=renamed)
            async with DraDriver([Moved()], options):
                await until_taints(server, {**free, "serial-0": ["NoSchedule"]})
                with pytest.raises(PodStartError, match=f"held as card-0 of {DRIVER} by claim default/"):
                    await start(server, claims, "serial-0", driver=renamed)
                await start(server, claims, "serial-1", driver=renamed)
                await claims.stop_pod(pod)
                await until_taints(server, {**free, "serial-0": [], "card-1": ["NoSchedule"]})
                await start(server, claims, "serial-0", driver=renamed, suffix="-again")
