"""The backend of test_prometheus.py, and the scenes that its plugins play: what alerts and the dashboard are for.

Each plugin is a process of ``kdp run`` with a kubelet of its own. A test makes files in the plugin's folder, and the
backend does what they say.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
from tests.integration.daemon.test_told import Cluster
from tests.integration.testkit.bare_plugin import BarePlugin
from tests.unit.cluster.http_server import served
from tests.waiting import until

from kdp.kubelet import KubeletPaths
from kdp.kubelet.server import open_channel
from kdp.proto import dra_v1_pb2 as v1
from kdp.testing import AdmissionError, Pod, SimulatedKubelet
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.objects import allocation, claim, node, result
from kdp_testkit.dra.server import SimulatedApiServer, write_kubeconfig
from kdp_testkit.patience import PATIENCE

from .nodekit import apis
from .nodekit.prometheus import Prometheus

RESOURCE: Final = "example.com/gpu"
DRIVER: Final = "gpu.example.com"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

PROGRAM: Final = """
import pathlib, threading, time
import kdp

HERE = pathlib.Path(__file__).parent

def waits(name):
    if (HERE / name).exists():
        threading.Event().wait()

class Gpus(kdp.DeviceBackend):
    resource = "example.com/gpu"
    poll_interval = 1.0
    policy = "linked"
    measurements = (kdp.Measurement("power", unit="watts", help="Of the card."),)
    measure_interval = 0.2

    def discover(self):
        waits("discover-hangs")
        has_more = (HERE / "block").exists() or (HERE / "lowest").exists()
        count = 0 if (HERE / "none").exists() else 3 if has_more else 2
        return [kdp.Device(id=f"gpu-{i}", edits=kdp.ContainerEdits(env={f"GPU_{i}": "1"})) for i in range(count)]

    def prefer(self, request):
        if (HERE / "lowest").exists():
            return sorted(device.id for device in request.available)[: request.size]
        return super().prefer(request)

    def watch(self, report):
        ill = set()
        while not report.stopping.wait(0.02):
            now = {path.name for path in (HERE / "ill").glob("*")}
            for each in now - ill:
                report.fault(each, "XID 79", kind="xid")
            for each in ill - now:
                report.clear(each, kind="xid")
            ill = now

    async def links(self, devices):
        while (HERE / "block").exists() and not (HERE / "end").exists():
            time.sleep(0.01)
        return {}

    def allocate(self, devices):
        if (HERE / "slow").exists():
            (HERE / "entered").touch()
            time.sleep(3)
        if (HERE / "refuse").exists():
            raise kdp.AllocationError("not today")
        return devices.edits()

    def released(self, devices):
        pass

    def measure(self):
        waits("measure-hangs")
        return {"gpu-0": {"power": 250.0}}
"""


@attrs.frozen
class Plugin:
    """A plugin that runs.

    Attributes:
        folder: What its backend looks at.
        port: Where it answers.
        options: More of its options.
        process: Its process.
    """

    folder: Path
    port: int
    options: tuple[str, ...]
    process: asyncio.subprocess.Process

    def says(self) -> str:
        """Return its log."""
        return (self.folder / "log").read_text(errors="replace")


@asynccontextmanager
async def running(folder: Path, *options: str, port: int = 0) -> AsyncIterator[Plugin]:
    """Run a plugin whose backend looks at a folder; the context begins when it answers. Port 0 is any."""
    program, log = folder / "plugin.py", folder / "log"
    program.write_text(PROGRAM)
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kdp", "run", f"{program}:Gpus", "--metrics=pods", f"--http=127.0.0.1:{port}"),
            *(f"--state-dir={folder}/state", f"--socket={folder}/own.sock", *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        with anyio.fail_after(PATIENCE):
            while (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text(errors="replace"))) is None:
                assert process.returncode is None, log.read_text(errors="replace")
                await anyio.sleep(0.05)
        yield Plugin(folder, int(found[1]), options, process)
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@attrs.frozen
class Scene:
    """One plugin, the kubelet that it has, and what happens to it.

    Attributes:
        plugin: The plugin.
        kubelet: Its kubelet.
        of: What matches its series, as ``instance="lost"``.
        prometheus: Who scrapes it.
    """

    plugin: Plugin
    kubelet: SimulatedKubelet
    of: str
    prometheus: Prometheus

    def touch(self, name: str) -> None:
        path = self.plugin.folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def remove(self, name: str) -> None:
        (self.plugin.folder / name).unlink()

    async def shows(self, series: str, comparison: str, *labels: str) -> None:
        """Wait until Prometheus has a series of this plugin that compares so."""
        await self.prometheus.until(f"{series}{{{','.join((self.of, *labels))}}} {comparison}", PATIENCE)

    async def raises(self, alert: str) -> None:
        """Wait until an alert of this plugin is there: what ends earlier is not seen by the rules."""
        await self.prometheus.until(f'ALERTS{{alertname="{alert}",{self.of}}}', PATIENCE)


async def busy(scene: Scene) -> None:
    """Let pods come and go: one takes long, and two are refused; then a kubelet restarts."""
    await scene.shows("kdp_registered", "== 1")
    pod = (await scene.kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-0"))).pod
    await scene.shows("kdp_device_allocation", "== 1", 'pod="train-0"')
    scene.touch("slow")
    slow = (await scene.kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-1"))).pod
    scene.remove("slow")
    await scene.kubelet.delete(slow)
    await scene.kubelet.delete(pod)
    scene.touch("refuse")
    for number in (1, 2):
        with suppress(AdmissionError):
            await scene.kubelet.admit(Pod.asking({RESOURCE: 1}, name=f"refused-{number}"))
        await scene.shows("kdp_operations_total", f"== {number}", 'operation="Allocate"', 'result!="ok"')
    await scene.kubelet.restart()
    await scene.shows("kdp_kubelet_restarts_total", "> 0")
    await scene.shows("kdp_registrations_total", "> 1", 'result="accepted"')


async def misconfigured(scene: Scene) -> None:
    """Break the configuration file, and then the directory of CDI files."""
    await scene.shows("kdp_config_info", "== 1")
    (scene.plugin.folder / "c.yaml").write_text("poll-interval: soon\n")
    scene.plugin.process.send_signal(signal.SIGHUP)
    await scene.shows("kdp_config_rejected", "== 1")
    cdi = scene.plugin.folder / "cdi"
    for file in cdi.glob("*"):
        file.unlink()
    cdi.rmdir()
    cdi.touch()
    await scene.shows("kdp_directory_writable", "== 0", 'directory="cdi"')


async def flapping(scene: Scene) -> None:
    """Let a device come and go until it is in quarantine, and then the other one fail, too."""
    await scene.shows("kdp_devices", "== 2", 'health="healthy"')
    for _ in range(3):
        scene.touch("ill/gpu-0")
        await scene.shows("kdp_devices", "== 1", 'health="unhealthy"')
        if await scene.prometheus.query(f'kdp_device_faults{{{scene.of},kind="quarantine"}} > 0'):
            break
        scene.remove("ill/gpu-0")
        await scene.shows("kdp_devices", "== 0", 'health="unhealthy"')
    await scene.shows("kdp_device_faults", "> 0", 'kind="quarantine"')
    scene.touch("ill/gpu-1")
    await scene.shows("kdp_devices", "== 2", 'health="unhealthy"')


async def gone(scene: Scene) -> None:
    """Take the hardware away, start the plugin anew, which has nothing to list then, and kill it."""
    await scene.shows("kdp_devices", "== 2", 'health="healthy"')
    scene.touch("none")
    await scene.shows("kdp_device_faults", "== 2", 'kind="vanished"')
    before = scene.plugin
    before.process.terminate()
    await before.process.wait()
    async with running(before.folder, *before.options, port=before.port) as plugin:
        await scene.prometheus.until(f"sum(kdp_devices{{{scene.of}}}) == 0", PATIENCE)
        await scene.raises("KdpResourceGone")
        plugin.process.kill()
        await scene.shows("up", "== 0")
        await scene.prometheus.until('ALERTS{alertname="KdpPluginGone",node="gone"}', PATIENCE)
        await scene.raises("KdpPluginUnstable")


async def stale(scene: Scene) -> None:
    """Let two hooks hang."""
    await scene.shows("kdp_power_watts", "== 250")
    scene.touch("discover-hangs")
    scene.touch("measure-hangs")
    await scene.shows("kdp_hooks_hanging", ">= 1")
    await scene.shows("kdp_discovery_age_seconds", "> 33")
    await scene.shows("kdp_hook_failures_total", ">= 1", 'reason="deadline"')


async def lost(scene: Scene) -> None:
    """Let the kubelet answer nothing, and then stop it."""
    await scene.shows("kdp_registered", "== 1")
    scene.kubelet.faults.pod_resources_slow(PATIENCE, times=None)
    await scene.shows("kdp_kubelet_frozen", "== 1")
    await scene.raises("KdpKubeletFrozen")
    await scene.kubelet.stop()
    await scene.shows("kdp_registered", "== 0")
    await scene.shows("kdp_not_ready", "== 1", 'cause="kubelet"')


async def rivalled(scene: Scene) -> None:
    """Let another plugin register the resource."""
    await scene.shows("kdp_kubelet_disagrees", "== 0")
    bare = BarePlugin(scene.kubelet.paths.device_plugin_dir, resource=RESOURCE, devices={"x0": "Healthy"})
    await bare.serve()
    await bare.register(scene.kubelet.paths.kubelet_socket)
    await scene.shows("kdp_kubelet_disagrees", "== 1")
    await scene.shows("kdp_foreign_devices", "== 1")
    await scene.shows("kdp_contested", "== 1")
    await scene.raises("KdpResourceContested")
    await scene.raises("KdpKubeletDisagrees")
    await bare.stop()


async def blocked(scene: Scene) -> None:
    """Let a hook block the event loop for a while."""
    await scene.shows("kdp_devices", "== 2", 'health="healthy"')
    scene.touch("block")
    await scene.shows("kdp_event_loop_blocked", "== 1")
    await scene.raises("KdpEventLoopBlocked")
    scene.touch("end")
    await scene.shows("kdp_event_loop_blocked", "== 0")


async def doubled(scene: Scene) -> None:
    """Let another program list pod resources during an Allocate: a kubelet up to 1.37 forgets what that was given."""
    scene.touch("lowest")
    await scene.shows("kdp_devices", "== 3", 'health="healthy"')
    first = (await scene.kubelet.admit(Pod.asking({RESOURCE: 1}, name="first"))).pod
    scene.touch("slow")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.kubelet.admit, Pod.asking({RESOURCE: 1}, name="slow"))
        await until((scene.plugin.folder / "entered").exists, "Allocate runs")
        await scene.kubelet.delete(first)
        await apis.pod_resources(scene.kubelet.paths.pod_resources_socket, "List", 1)
        # A kubelet that answers tells kdp who has the device, and kdp refuses the second pod.
        scene.kubelet.faults.pod_resources_exhausted(times=None)
    scene.remove("slow")
    await scene.kubelet.admit(Pod.asking({RESOURCE: 2}, name="last"))
    scene.kubelet.faults.clear()
    await scene.shows("kdp_devices_given_twice", "> 0")
    await scene.raises("KdpDeviceGivenTwice")


SCENES: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    each.__name__: each for each in (busy, misconfigured, flapping, gone, stale, lost, rivalled, blocked, doubled)
}


@asynccontextmanager
async def telling(folder: Path, kubelet: SimulatedKubelet) -> AsyncIterator[tuple[Plugin, Cluster]]:
    """Run a plugin that tells an API server of its devices, and asks it to evict pods."""
    async with served() as server:
        cluster = Cluster(server)
        options = [
            *(*options_of("told", folder, kubelet), "--events=on", "--on-unhealthy=evict", "--evict-after=1"),
            *("--node-name=node0", f"--kubeconfig={write_kubeconfig(folder, server.url)}"),
        ]
        async with running(folder, *options) as plugin:
            yield plugin, cluster


async def told(scene: Scene, cluster: Cluster) -> None:
    """Let the device of a pod fail that a budget does not let go."""
    await scene.shows("kdp_evictions_total", "== 0", 'result="blocked"')
    cluster.budget = True
    cluster.run("train-0")
    await scene.kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-0"))
    await scene.shows("kdp_allocated_devices", "== 1")
    for number in (0, 1):
        scene.touch(f"ill/gpu-{number}")
    await scene.shows("kdp_evictions_total", "> 0", 'result="blocked"')
    await scene.raises("KdpEvictionFailing")
    await scene.shows("kdp_events_total", "> 0", 'result="created"')


@attrs.frozen
class Driver:
    """A DRA driver that runs, between a simulated API server and a simulated kubelet."""

    plugin: Plugin
    server: SimulatedApiServer
    kubelet: SimulatedDraKubelet


@asynccontextmanager
async def driving(folder: Path) -> AsyncIterator[Driver]:
    """Run a DRA driver."""
    async with SimulatedApiServer() as server, SimulatedDraKubelet(server.ask, folder / "kubelet") as kubelet:
        await server.ask("POST", "/api/v1/nodes", node())
        options = [
            *("--mode=dra", "--node-name=node0", f"--kubelet-root={kubelet.root}", f"--cdi-dir={folder}/cdi"),
            f"--kubeconfig={write_kubeconfig(folder, server.url)}",
        ]
        async with running(folder, *options) as plugin:
            yield Driver(plugin, server, kubelet)


async def claimed(driver: Driver, prometheus: Prometheus) -> None:
    """Prepare a claim, ask for one that is none, and take the API server away when the devices change."""
    await prometheus.until(f'kdp_publication_age_seconds{{driver_name="{DRIVER}"}} == 0', PATIENCE)
    await prometheus.until(f'kdp_registered{{driver_name="{DRIVER}"}} == 1', PATIENCE)
    made = await driver.server.ask("POST", CLAIMS, claim("c"))
    made["status"] = {"allocation": allocation([result(DRIVER, "gpu-0")])}
    await driver.server.ask("PUT", f"{CLAIMS}/c/status", made)
    await _prepare(driver, made["metadata"]["uid"])
    await prometheus.until("kdp_claims_prepared == 1")
    await _prepare(driver, "another-uid")
    await prometheus.until('kdp_operations_total{operation="NodePrepareResources",result!="ok"} > 0')
    driver.server.faults.is_away = True
    (driver.plugin.folder / "ill").mkdir()
    (driver.plugin.folder / "ill/gpu-1").touch()
    await prometheus.until("kdp_publication_age_seconds > 30", PATIENCE)
    driver.plugin.process.kill()
    await prometheus.until('ALERTS{alertname="KdpClaimsUnprepared",node="dra"}', PATIENCE)


async def _prepare(driver: Driver, uid: str) -> None:
    [service] = (KubeletPaths.simulated(driver.kubelet.root).plugins_dir / DRIVER).glob("[!.]*.sock")
    request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="default", name="c", uid=uid)])
    async with open_channel(service) as channel:
        asked: Any = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
        await asked(request.SerializeToString(), timeout=PATIENCE)


def options_of(name: str, folder: Path, kubelet: SimulatedKubelet) -> Sequence[str]:
    """Return the options of a scene's plugin."""
    paths = kubelet.paths
    options = [
        f"--device-plugin-dir={paths.device_plugin_dir}",
        f"--plugins-registry-dir={paths.plugins_registry_dir}",
        f"--pod-resources-dir={paths.pod_resources_dir}",
        "--cdi=beside",
        f"--cdi-dir={folder}/cdi",
    ]
    if name != "misconfigured":
        return options
    (folder / "c.yaml").write_text("poll-interval: 1\n")
    return [*options, f"--config={folder}/c.yaml"]
