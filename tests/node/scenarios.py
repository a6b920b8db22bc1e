"""What is played on the simulated and on the real device manager, to be seen alike on both.

Each function is one scenario; its docstring is its title. Where a kubelet chooses at
random between devices that are alike, the scenario says so by ``on.by_chance``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import grpc

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp.testing import Container, Pod

from . import resources_scenarios, topology_scenarios
from .nodekit.nodes import RESOURCE, Play, Scenario, Settings
from .nodekit.recorder import Listed, Refused, replies

SCENARIOS: Final[dict[str, Scenario]] = {}
SETTINGS: Final[dict[str, Settings]] = {**topology_scenarios.SETTINGS}
"""How the kubelet of a scenario is set, where it is not as it comes."""
OTHER = "example.com/gadget"


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def title(scenario: Scenario) -> str:
    """Return what happens in it, in one line."""
    return " ".join((scenario.__doc__ or "").split())


def pod(name: str, count: int = 1, **more: int) -> Pod:
    return Pod.asking({RESOURCE: count, **more}, name=name)


def listed(*ids: str) -> list[Listed]:
    return [Listed(id_) for id_ in ids]


# -- registration ------------------------------------------------------------------------------------------------------


@scenario
async def registers(on: Play) -> None:
    """A plugin registers, and its devices are counted."""
    await on.registered()


@scenario
async def registers_without_devices(on: Play) -> None:
    """An empty list is counted as none."""
    await on.registered(devices=[])
    await on.admit(pod("p"))


@scenario
async def wrong_requests(on: Play) -> None:
    """Register with a version or a name that no kubelet takes."""
    plugin = await on.plugin()
    await on.register(plugin, version="v1alpha1")
    await on.register(plugin, version="")
    for name in (
        "widget",
        "kubernetes.io/widget",
        "a.kubernetes.io/widget",
        "requests.example.com/widget",
        "Example.com/w",
        "example.com/",
        "example.com/-w",
        "example.com/W_1.x",
        "example.com/" + "w" * 64,
        "",
    ):
        await on.register(plugin, resource=name)


@scenario
async def nobody_at_the_endpoint(on: Play) -> None:
    """Register with an endpoint where nobody listens."""
    plugin = await on.plugin()
    await on.register(plugin, endpoint="nobody.sock")


@scenario
async def an_endpoint_elsewhere(on: Play) -> None:
    """An endpoint is joined to the directory, whatever it is."""
    plugin = await on.plugin(directory=on.paths.device_plugin_dir.parent)
    await on.register(plugin, endpoint="../a.sock")


@scenario
async def options_fail(on: Play) -> None:
    """GetDevicePluginOptions fails, and the registration with it; then it does not."""
    plugin = await on.plugin(options_error=Refused(grpc.StatusCode.INTERNAL, "no options today"))
    await on.register(plugin)
    plugin.options_error = None
    await on.register(plugin)


@scenario
async def options_fail_beside_a_living_plugin(on: Play) -> None:
    """A second instance fails; what becomes of the first, also when it ends."""
    first = await on.registered("a.sock")
    second = await on.plugin("b.sock", options_error=Refused(grpc.StatusCode.INTERNAL, "no options today"))
    await on.register(second)
    first.change(Listed("w0"), Listed("w1"), Listed("w2"))
    await on.see("a.sock has one more")
    first.end_streams()
    await on.see("a.sock ends its stream")
    await on.admit(pod("p", 3))


@scenario
async def the_same_path_twice(on: Play) -> None:
    """A living plugin registers its socket again."""
    plugin = await on.registered()
    await on.register(plugin)
    plugin.change(Listed("w0"))
    await on.see("one device less")
    plugin.end_streams()
    await on.see("its streams end")
    await on.register(plugin)


@scenario
async def another_path(on: Play) -> None:
    """A second instance takes over, then the first one ends, then the second."""
    first = await on.registered("a.sock")
    second = await on.registered("b.sock", devices=listed("w0", "w1", "w2"))
    first.change(Listed("w0"))
    await on.see("a.sock says one device")
    second.change(Listed("w0"), Listed("w1"))
    await on.see("b.sock says two devices")
    await on.admit(pod("p", 2))
    first.end_streams()
    await on.see("a.sock ends its stream")
    await on.admit(pod("q", 1))
    await second.stop()
    await on.see("b.sock is gone")


@scenario
async def the_second_leaves_again(on: Play) -> None:
    """A second instance comes and goes; the first one stays."""
    first = await on.registered("a.sock")
    second = await on.registered("b.sock")
    second.end_streams()
    await on.see("b.sock ends its stream")
    await on.admit(pod("p", 2))
    first.change(Listed("w0"), Listed("w1"), Listed("w2"))
    await on.see("a.sock has one more")


@scenario
async def again_after_its_end(on: Play) -> None:
    """The stream ends and the plugin registers again, under another name."""
    first = await on.registered("a.sock")
    first.end_streams()
    await on.see("a.sock ends its stream")
    await on.admit(pod("p"))
    await on.registered("b.sock")
    await on.admit(pod("q", 2))


# -- lists -------------------------------------------------------------------------------------------------------------


@scenario
async def health_is_a_word(on: Play) -> None:
    """Only the exact word Healthy is healthy."""
    await on.registered(
        devices=[Listed("w0"), Listed("w1", "healthy"), Listed("w2", ""), Listed("w3", "Unhealthy"), Listed("w4", "OK")]
    )
    await on.admit(pod("p"))
    await on.admit(pod("q"))


@scenario
async def none_is_healthy(on: Play) -> None:
    """Devices there are, but none that is healthy."""
    plugin = await on.registered()
    plugin.change(Listed("w0", "Unhealthy"), Listed("w1", "Unhealthy"))
    await on.see("both are ill")
    await on.admit(pod("p"))


@scenario
async def an_id_twice(on: Play) -> None:
    """An id that is listed twice, once healthy and once not."""
    plugin = await on.registered(devices=[Listed("w0"), Listed("w0", "Unhealthy"), Listed("w1")])
    plugin.change(Listed("w0"), Listed("w0"), Listed("w1"))
    await on.see("twice healthy")


@scenario
async def lists_change(on: Play) -> None:
    """Each list replaces the one before."""
    plugin = await on.registered()
    for devices in (listed("w0", "w1", "w2"), [Listed("w0"), Listed("w1", "Unhealthy")], [], listed("x0")):
        plugin.change(*devices)
        await on.see(f"it lists {[(d.id, d.health) for d in devices]}")


@scenario
async def a_pod_keeps_what_has_vanished(on: Play) -> None:
    """A device vanishes that a pod holds; the pod's container starts again all the same."""
    plugin = await on.registered()
    one = pod("p", 2)
    await on.admit(one)
    plugin.change(Listed("w1"))
    await on.see("w0 vanishes")
    await on.start_container(one)
    await on.admit(pod("q"))
    plugin.change()
    await on.see("all vanish")
    await on.admit(pod("r"))
    await on.delete(one)
    plugin.change(Listed("w1"))
    await on.see("w1 is back")
    await on.admit(pod("s"))


@scenario
async def a_list_that_is_too_large(on: Play) -> None:
    """A list of more than 4 MiB ends the stream."""
    plugin = await on.registered()
    plugin.change(*(Listed(f"{n:063d}") for n in range(60_000)))
    await anyio.sleep(2)
    await on.see("60,000 devices with long names")


@scenario
async def a_first_list_that_is_too_large(on: Play) -> None:
    """The same before any other list: the resource appears without devices, or not at all."""
    plugin = await on.plugin(devices=[Listed(f"{n:063d}") for n in range(60_000)])
    answer = await plugin.register(on.paths.kubelet_socket)
    await anyio.sleep(2)
    await on.see("60,000 devices with long names", answer)
    await on.admit(pod("p"))


@scenario
async def a_plugin_is_killed(on: Play) -> None:
    """The connection breaks without a word."""
    plugin = await on.registered()
    await plugin.kill()
    await on.see("the server is gone at once")
    await on.admit(pod("p"))


# -- pods --------------------------------------------------------------------------------------------------------------


@scenario
async def pods_take_and_leave(on: Play) -> None:
    """Devices are taken, refused when there are none, and free again when their pod is gone."""
    on.by_chance = True
    await on.registered(devices=listed("w0", "w1", "w2"))
    both = pod("p", 2)
    await on.admit(both)
    await on.admit(pod("q", 2))
    await on.delete(both)
    await on.admit(pod("r", 3))
    await on.admit(pod("s", 4))


@scenario
async def a_resource_that_nobody_knows(on: Play) -> None:
    """A pod asks for a resource without a plugin: it starts without it."""
    await on.admit(pod("p"))
    await on.registered()
    await on.admit(Pod.asking({OTHER: 1}, name="q"))


@scenario
async def nothing_is_asked_for(on: Play) -> None:
    """A limit of zero."""
    plugin = await on.registered(options={"pre_start_required": True, "get_preferred_allocation_available": True})
    await on.admit(pod("p", 0))
    plugin.change()
    await on.see("no devices")
    await on.admit(pod("q", 0))


@scenario
async def several_resources(on: Play) -> None:
    """A container with devices of two resources: the replies are merged."""
    on.any_order = True
    await on.registered("a.sock")
    await on.registered("b.sock", resource=OTHER, devices=listed("g0"), allocate=_gadgets)
    admitted = pod("p", 2, **{OTHER: 1})
    await on.admit(admitted)


def _gadgets(asked: list[list[str]]) -> list[v1beta1.ContainerAllocateResponse]:
    return [v1beta1.ContainerAllocateResponse(envs={"GADGETS": str(len(ids))}) for ids in asked]


@scenario
async def allocate_fails(on: Play) -> None:
    """An error of Allocate is the pod's end, and its devices are free again."""

    def refuse(asked: list[list[str]]) -> list[v1beta1.ContainerAllocateResponse]:
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "the widget is asleep")

    plugin = await on.registered()
    answer, plugin.allocate = plugin.allocate, refuse
    await on.admit(pod("p", 2))
    await on.admit(pod("q", 2))
    plugin.allocate = answer
    await on.admit(pod("r", 2))


@scenario
async def a_device_vanishes_during_its_allocation(on: Play) -> None:
    """A list without the device comes before the answer to its Allocate: the kubelet dies of it."""
    plugin = await on.registered(devices=listed("w0"))

    async def vanish(asked: list[list[str]]) -> list[v1beta1.ContainerAllocateResponse]:
        plugin.change()
        await anyio.sleep(0.3)
        return replies(asked)

    plugin.allocate = vanish
    await on.admit(pod("p"))


@scenario
async def allocate_answers_nothing(on: Play) -> None:
    """A reply without a container: the devices stay booked until something counts again."""
    plugin = await on.registered()
    answer, plugin.allocate = plugin.allocate, lambda asked: []
    await on.admit(pod("p", 2))
    await on.admit(pod("q", 2))
    plugin.allocate = answer
    await on.admit(pod("r", 2))


@scenario
async def allocate_answers_twice(on: Play) -> None:
    """A reply with more containers than asked for: the first one counts."""
    await on.registered(allocate=lambda asked: [*_gadgets(asked), *_gadgets([["x"]])])
    await on.admit(pod("p", 2))


@scenario
async def an_odd_reply(on: Play) -> None:
    """A reply that no runtime would take: the kubelet looks at nothing."""

    def odd(asked: list[list[str]]) -> list[v1beta1.ContainerAllocateResponse]:
        return [
            v1beta1.ContainerAllocateResponse(
                envs={"": "", "A=B": "c"},
                mounts=[
                    v1beta1.Mount(container_path="x", host_path=""),
                    v1beta1.Mount(container_path="x", host_path="/y"),
                ],
                devices=[
                    v1beta1.DeviceSpec(container_path="/dev/x", host_path="../x", permissions="q"),
                    v1beta1.DeviceSpec(container_path="/dev/x", host_path="/dev/y", permissions="rw"),
                ],
                annotations={"cdi.k8s.io/a": "b"},
                cdi_devices=[v1beta1.CDIDevice(name="a"), v1beta1.CDIDevice(name="a"), v1beta1.CDIDevice(name="")],
            )
            for _ in asked
        ]

    await on.registered(allocate=odd)
    await on.admit(pod("p", 2))


@scenario
async def the_second_container_fails(on: Play) -> None:
    """Container two of a pod is refused: what container one got is free again."""
    on.by_chance = True
    await on.registered(devices=listed("w0", "w1", "w2"))
    await on.admit(Pod(name="p", containers=[Container("one", {RESOURCE: 2}), Container("two", {RESOURCE: 2})]))
    await on.admit(pod("q", 3))


@scenario
async def init_containers(on: Play) -> None:
    """An init container's devices are used again by the next one and by the main container."""
    await on.registered()
    await on.admit(
        Pod(
            name="p",
            init_containers=[Container("i1", {RESOURCE: 2}), Container("i2", {RESOURCE: 2})],
            containers=[Container("main", {RESOURCE: 2})],
        )
    )


@scenario
async def sidecars(on: Play) -> None:
    """A sidecar keeps its devices; there are none left for the main container."""
    on.by_chance = True
    await on.registered()
    await on.admit(
        Pod(
            name="p",
            init_containers=[Container("i", {RESOURCE: 2}), Container("s", {RESOURCE: 2}, restartable=True)],
            containers=[Container("main", {RESOURCE: 1})],
        )
    )
    await on.admit(
        Pod(
            name="q",
            init_containers=[Container("i", {RESOURCE: 1}), Container("s", {RESOURCE: 1}, restartable=True)],
            containers=[Container("main", {RESOURCE: 1})],
        ),
    )


@scenario
async def an_init_container_holds_more(on: Play) -> None:
    """What an init container had and the main one does not need stays taken until the pod is gone."""
    on.by_chance = True
    await on.registered()
    one = Pod(name="p", init_containers=[Container("i", {RESOURCE: 2})], containers=[Container("main", {RESOURCE: 1})])
    await on.admit(one)
    await on.admit(pod("q"))
    await on.delete(one)
    await on.admit(pod("r", 2))


@scenario
async def the_checkpoint(on: Play) -> None:
    """What is written down, and when it is written again."""
    await on.checkpoint()
    plugin = await on.registered(devices=[Listed("w0", numa_nodes=(0,)), Listed("w1", numa_nodes=(0, 1)), Listed("w2")])
    await on.checkpoint()
    one = pod("p", 3)
    await on.admit(one)
    await on.checkpoint()
    plugin.change(Listed("w0", "Unhealthy"))
    await on.see("w0 is ill, the others are gone")
    await on.checkpoint()
    await on.delete(one)
    await on.checkpoint()
    plugin.change(Listed("w0"))
    await on.see("w0 is well")
    await on.admit(pod("q"))
    await on.checkpoint()
    await plugin.stop()
    await on.see("the plugin ends")
    await on.pass_time(301)
    await on.checkpoint()
    await on.restart()
    await on.checkpoint()


# -- preferences -------------------------------------------------------------------------------------------------------

PREFERS = {"get_preferred_allocation_available": True}


def preferring(answer: Callable[[list[str], list[str], int], list[str]], count: int, asks: int) -> Scenario:
    async def run(on: Play) -> None:
        await on.registered(options=PREFERS, prefer=answer, devices=listed(*(f"w{n}" for n in range(count))))
        await on.admit(pod("p", asks))

    return run


def _named(name: str, title: str, run: Scenario) -> None:
    run.__doc__ = title
    SCENARIOS[name] = run


_named("prefers", "The preference is followed.", preferring(lambda a, m, s: ["w1", "w3"], 4, 2))
_named("prefers_all", "It is asked also when there is no choice.", preferring(lambda a, m, s: a, 2, 2))
_named(
    "prefers_unknown",
    "Ids that are not there are left out.",
    preferring(lambda a, m, s: [*(f"x{n}" for n in range(20)), "w1", "w0"], 2, 2),
)
_named("prefers_twice", "An id that is preferred twice counts once.", preferring(lambda a, m, s: ["w1", "w1"], 3, 1))
_named("prefers_nothing", "An empty preference leaves the choice to the kubelet.", preferring(lambda a, m, s: [], 2, 2))


@scenario
async def prefers_with_init_devices(on: Play) -> None:
    """What an init container held must be in the choice."""

    def first(available: list[str], must: list[str], size: int) -> list[str]:
        return [*must, *(i for i in available if i not in must)][:size]

    await on.registered(options=PREFERS, prefer=first, devices=listed("w0", "w1", "w2", "w3"))
    await on.admit(
        Pod(
            name="p",
            init_containers=[Container("i", {RESOURCE: 1})],
            containers=[Container("main", {RESOURCE: 3})],
        )
    )


@scenario
async def preference_fails(on: Play) -> None:
    """An error of GetPreferredAllocation is the pod's end."""

    def refuse(available: list[str], must: list[str], size: int) -> list[str]:
        raise Refused(grpc.StatusCode.INTERNAL, "no preference today")

    plugin = await on.registered(options=PREFERS, prefer=refuse)
    await on.admit(pod("p"))
    plugin.prefer = lambda available, must, size: available[:size]
    await on.admit(pod("q"))


# -- starts ------------------------------------------------------------------------------------------------------------

PREPARES = {"pre_start_required": True}


@scenario
async def prepares_each_start(on: Play) -> None:
    """PreStartContainer comes before each start of each container."""
    await on.registered(options=PREPARES)
    one = Pod(name="p", init_containers=[Container("i", {RESOURCE: 2})], containers=[Container("main", {RESOURCE: 2})])
    await on.admit(one)
    await on.start_container(one)
    await on.start_container(one)


@scenario
async def preparing_fails(on: Play) -> None:
    """An error of PreStartContainer fails this start; the next one may go well."""

    def refuse(ids: list[str]) -> None:
        raise Refused(grpc.StatusCode.INTERNAL, "no start today")

    plugin = await on.registered(options=PREPARES, pre_start=refuse)
    one = pod("p", 2)
    await on.admit(one)
    plugin.pre_start = lambda ids: None
    await on.start_container(one)


@scenario
async def prepares_after_the_plugins_end(on: Play) -> None:
    """A container is started again while its plugin is gone."""
    plugin = await on.registered(options=PREPARES)
    one = pod("p", 2)
    await on.admit(one)
    await plugin.stop()
    await on.see("the plugin ends")
    await on.start_container(one)
    await on.registered("b.sock", options=PREPARES)
    await on.start_container(one)


@scenario
async def starts_after_the_plugins_end(on: Play) -> None:
    """Without PreStartContainer a container starts again without its plugin, until five minutes have passed."""
    plugin = await on.registered()
    one = pod("p", 2)
    await on.admit(one)
    await plugin.stop()
    await on.see("the plugin ends")
    await on.start_container(one)
    await on.pass_time(295)
    await on.start_container(one)
    await on.pass_time(301)
    await on.start_container(one)
    await on.admit(pod("q"))
    await on.registered("b.sock")
    await on.start_container(one)
    await on.delete(one)
    await on.admit(pod("r", 2))


# -- restarts ----------------------------------------------------------------------------------------------------------


@scenario
async def a_kubelet_restarts(on: Play) -> None:
    """Running pods stay; until the plugin is back there are no devices, and nobody is asked again."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart()
    await on.readmit()
    await on.admit(pod("q"))
    await on.registered("b.sock")
    await on.admit(pod("r"))


@scenario
async def a_kubelet_restarts_after_the_plugin(on: Play) -> None:
    """The plugin is back before the pods are looked at."""
    on.by_chance = True
    await on.registered()
    await on.admit(pod("p"))
    await on.restart()
    await on.registered("b.sock")
    await on.readmit()
    await on.admit(pod("q"))
    await on.admit(pod("r"))


@scenario
async def a_kubelet_restarts_with_an_init_container(on: Play) -> None:
    """A completed init container is not running: its pod fails where the plugin is late."""
    await on.registered()
    await on.admit(
        Pod(name="p", init_containers=[Container("i", {RESOURCE: 2})], containers=[Container("main", {RESOURCE: 2})])
    )
    await on.restart()
    await on.readmit()
    await on.registered("b.sock")
    await on.admit(pod("q", 2))


@scenario
async def a_kubelet_restarts_and_its_pods_start_again(on: Play) -> None:
    """Before the plugin is back its options are not known: nothing is prepared."""
    await on.registered(options=PREPARES)
    one = pod("p", 2)
    await on.admit(one)
    await on.restart()
    await on.readmit()
    await on.start_container(one)
    await on.registered("b.sock", options=PREPARES)
    await on.start_container(one)


@scenario
async def a_node_reboots(on: Play) -> None:
    """Nothing runs: a pod that comes before its plugin fails."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart(reboot=True)
    await on.readmit()
    await on.registered("b.sock")
    await on.admit(pod("q", 2))


@scenario
async def a_node_reboots_and_the_plugin_is_first(on: Play) -> None:
    """A pod that comes after its plugin starts with the reply from before."""
    await on.registered(options=PREPARES)
    await on.admit(pod("p", 2))
    await on.restart(reboot=True)
    await on.registered("b.sock", options=PREPARES)
    await on.readmit()


@scenario
async def a_device_is_ill_after_the_reboot(on: Play) -> None:
    """A pod whose device is not healthy any more fails."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart(reboot=True)
    await on.registered("b.sock", devices=[Listed("w0"), Listed("w1", "Unhealthy")])
    await on.readmit()


@scenario
async def a_pod_asks_for_more_after_the_restart(on: Play) -> None:
    """Requests are not supposed to change."""
    on.by_chance = True
    await on.registered(devices=listed("w0", "w1", "w2"))
    await on.admit(pod("p", 2))
    await on.restart()
    await on.registered("b.sock", devices=listed("w0", "w1", "w2"))
    await on.admit(pod("p", 3))


@scenario
async def a_resource_is_forgotten_over_a_restart(on: Play) -> None:
    """Five minutes after the kubelet's start a resource whose plugin did not come back is forgotten."""
    await on.registered()
    await on.restart()
    await on.pass_time(295)
    await on.pass_time(301)
    await on.admit(pod("p"))


@scenario
async def a_pod_leaves_while_the_kubelet_is_down(on: Play) -> None:
    """Its devices are free when the API server has been heard."""
    await on.registered()
    one, two = pod("p"), pod("q")
    on.by_chance = True
    await on.admit(one)
    await on.admit(two)
    await on.restart(gone=one)
    await on.registered("b.sock")
    await on.readmit()
    await on.admit(pod("r", 2))
    await on.admit(pod("s", 1))


@scenario
async def the_checkpoint_is_broken(on: Play) -> None:
    """A kubelet that cannot read its checkpoint begins with nothing."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart(checkpoint="{")
    await on.readmit()
    await on.registered("b.sock")
    await on.admit(pod("q", 2))


@scenario
async def the_checkpoint_is_lost(on: Play) -> None:
    """A kubelet without its checkpoint does not know the resource: a pod starts without its devices."""
    await on.registered()
    await on.admit(pod("p", 2))
    await on.restart(checkpoint=None, reboot=True)
    await on.readmit()
    await on.registered("b.sock")
    await on.admit(pod("q", 2))


@scenario
async def the_manager_ends_in_order(on: Play) -> None:
    """The device manager's own stop: connections are closed, and the checkpoint is read again."""
    await on.registered()
    await on.stop_and_start()
    await on.registered("b.sock")


@scenario
async def sockets_are_wiped(on: Play) -> None:
    """What a kubelet's start removes from the directory."""
    directory = on.paths.device_plugin_dir
    plugin = await on.registered()
    (directory / "file").write_text("")
    (directory / "folder").mkdir()
    (directory / "link").symlink_to(directory / "file")
    (directory / "dangling").symlink_to(directory / "nowhere")
    (directory / "to-socket").symlink_to(plugin.path)
    (directory / "folder" / "file").write_text("")
    await on.restart()
    await on.see("the directory", ", ".join(sorted(str(p.relative_to(directory)) for p in directory.rglob("*"))))


# -- the plugin watcher ------------------------------------------------------------------------------------------------


@scenario
async def watched(on: Play) -> None:
    """A socket appears, its plugin is registered and told so; the socket goes, and the plugin with it."""
    plugin = await on.plugin(directory=on.paths.plugins_registry_dir)
    await on.until_called("NotifyRegistrationStatus")
    await on.see("a.sock appears")
    await on.admit(pod("p", 2))
    plugin.path.unlink()
    await anyio.sleep(2.5)
    await on.see("a.sock is removed")


@scenario
async def watched_stream_ends(on: Play) -> None:
    """The stream ends and the socket stays: nobody comes back."""
    plugin = await on.plugin(directory=on.paths.plugins_registry_dir)
    await on.until_called("NotifyRegistrationStatus")
    await on.see("a.sock appears")
    plugin.end_streams()
    await anyio.sleep(2.5)
    await on.see("the stream ends")


@scenario
async def watched_over_a_restart(on: Play) -> None:
    """The watcher's directory is not wiped, and a new kubelet finds the plugin."""
    await on.plugin(directory=on.paths.plugins_registry_dir)
    await on.until_called("NotifyRegistrationStatus")
    await on.see("a.sock appears")
    await on.restart()
    await on.until_called("NotifyRegistrationStatus", 2)
    await on.see("the new kubelet has looked")


def watching(**fields: object) -> Scenario:
    async def run(on: Play) -> None:
        info = registration.PluginInfo(type="DevicePlugin", name=RESOURCE, supported_versions=["v1beta1"])
        changed = registration.PluginInfo(**{**{f.name: v for f, v in info.ListFields()}, **fields})
        await on.plugin(directory=on.paths.plugins_registry_dir, info=changed)
        await on.until_called("NotifyRegistrationStatus")
        await on.see("a.sock appears")

    return run


_named("watched_wrong_version", "The watcher: no version that it knows.", watching(supported_versions=["v1", "v2"]))
_named("watched_wrong_name", "The watcher: a name that no kubelet takes.", watching(name="widget"))
_named("watched_wrong_type", "The watcher: a type that nobody handles.", watching(type="Widget"))


@scenario
async def watched_no_endpoint(on: Play) -> None:
    """The watcher: an endpoint where nobody listens; it is asked again or not."""
    info = registration.PluginInfo(
        type="DevicePlugin", name=RESOURCE, supported_versions=["v1beta1"], endpoint="/nowhere/x.sock"
    )
    await on.plugin(directory=on.paths.plugins_registry_dir, info=info)
    await on.until_called("NotifyRegistrationStatus")
    await on.until_called("GetInfo", 2, seconds=5)
    await on.see("a.sock appears")


@scenario
async def watched_options_fail(on: Play) -> None:
    """The watcher: the registration fails, and is tried again or not."""
    plugin = await on.plugin(
        directory=on.paths.plugins_registry_dir, options_error=Refused(grpc.StatusCode.INTERNAL, "no options today")
    )
    await on.until_called("NotifyRegistrationStatus")
    plugin.options_error = None
    await on.until_called("NotifyRegistrationStatus", 2, seconds=5)
    await on.see("GetDevicePluginOptions failed once")


SCENARIOS.update(topology_scenarios.SCENARIOS | resources_scenarios.SCENARIOS)
