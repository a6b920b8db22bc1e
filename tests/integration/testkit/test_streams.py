"""What the end of a stream does, in each version of the kubelet (contract sections 2.5 and 5)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from kdp.proto.deviceplugin.v1beta1 import api_pb2 as v1beta1
from kdp.testing import Pod, ScenarioError, SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin


@pytest.mark.parametrize("how", ["clean", "dropped", "severed", "stopped"])
async def test_the_end_of_the_stream_makes_all_devices_unhealthy(
    kubelet: SimulatedKubelet, connect: MakePlugin, how: str
) -> None:
    plugin = await connect()
    match how:
        case "clean":
            plugin.end_streams()
        case "dropped":
            kubelet.drop_stream(RESOURCE)
        case "severed":
            kubelet.sever(RESOURCE)
        case _:
            await plugin.stop()
    await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
    await kubelet.until(lambda: kubelet.events.of(events.Disconnected))

    [ended] = kubelet.events.of(events.StreamEnded)
    assert ended.code == {"clean": "OK", "dropped": "CANCELLED", "severed": "UNAVAILABLE"}.get(how, ended.code)
    assert kubelet.streams(RESOURCE) == 0
    assert kubelet.devices(RESOURCE)["w0"].health == "Healthy"  # the table keeps what was listed last
    with pytest.raises(ScenarioError, match="no open stream"):
        kubelet.drop_stream(RESOURCE)


async def test_after_five_minutes_the_resource_is_forgotten_at_the_next_look(profile: str) -> None:
    now = 1000.0
    async with SimulatedKubelet(profile=profile, clock=lambda: now) as kubelet:
        plugin = BarePlugin(kubelet.paths.device_plugin_dir)
        await plugin.serve()
        await plugin.register(kubelet.paths.kubelet_socket)
        await kubelet.until(allocatable={RESOURCE: 2})
        await plugin.stop()
        await kubelet.until(allocatable={RESOURCE: 0})
        now += 300.0
        assert kubelet.capacity() == {RESOURCE: 2}
        now += 0.1
        assert kubelet.capacity() == {}
        assert kubelet.node_status().capacity == {RESOURCE: 0}  # the node object never forgets it


async def test_two_generations_feed_one_table(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    old = await connect(devices={"a": "Healthy"})
    new = await connect(devices={"b": "Healthy", "c": "Healthy"})
    await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2, capacity={RESOURCE: 2})
    old.change({"a": "Unhealthy"})
    await kubelet.until(capacity={RESOURCE: 1}, allocatable={RESOURCE: 0})
    new.change({"b": "Healthy", "c": "Healthy"})
    await kubelet.until(allocatable={RESOURCE: 2})
    await kubelet.plugin(RESOURCE).allocate(["b"])
    assert new.calls[-1][0] == "allocate"


async def test_when_the_old_generation_ends_the_new_one_lives_or_falls(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    old = await connect(devices={"a": "Healthy"})
    new = await connect(devices={"b": "Healthy"})
    await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2)

    await old.stop()

    if kubelet.profile.one_client_per_resource:
        # The takeover bug: the end of the old stream closes the new client, found by the resource's name.
        await kubelet.until(lambda: len(kubelet.events.of(events.StreamEnded)) == 2, allocatable={RESOURCE: 0})
        assert {event.socket_path for event in kubelet.events.of(events.StreamEnded)} == {str(old.path), str(new.path)}
        [disconnected] = kubelet.events.of(events.Disconnected)
        assert disconnected.socket_path == str(new.path)
        await new.until(lambda: new.streams == 0)
        # The cure: register again under the same or another name.
        assert await new.register(kubelet.paths.kubelet_socket) is None
        await kubelet.until(allocatable={RESOURCE: 1})
    else:
        await kubelet.until(lambda: kubelet.events.of(events.Disconnected))
        assert kubelet.allocatable() == {RESOURCE: 1}
        assert kubelet.streams(RESOURCE) == 1
        await new.stop()
        await kubelet.until(allocatable={RESOURCE: 0})


async def test_a_path_that_is_on_record_is_refused_and_poisoned_by_the_newest_kubelet_only(
    kubelet: SimulatedKubelet, connect: MakePlugin, serve: MakePlugin
) -> None:
    plugin = await connect()
    answer = await plugin.register(kubelet.paths.kubelet_socket)
    if kubelet.profile.one_client_per_resource:
        assert answer is None
        await kubelet.until(lambda: kubelet.streams(RESOURCE) == 2)
        return
    assert answer == f"UNKNOWN: device plugin already connected: {plugin.path}"

    # From here on the end of the living stream goes unnoticed: the devices stay healthy for ever.
    plugin.end_streams()
    await kubelet.until(lambda: kubelet.events.of(events.StreamEnded))
    assert not kubelet.events.of(events.Disconnected)
    assert kubelet.allocatable() == {RESOURCE: 2}

    # The path is refused for ever, also with a new server behind it.
    await plugin.stop()
    await plugin.serve()
    assert await plugin.register(kubelet.paths.kubelet_socket) == answer

    # A new path is taken; when it ends, the dead record is promoted and calls go to it.
    fresh = await serve(devices={"w7": "Healthy"})
    assert await fresh.register(kubelet.paths.kubelet_socket) is None
    await kubelet.until(allocatable={RESOURCE: 1})
    await plugin.stop()
    await fresh.stop()
    await kubelet.until(lambda: kubelet.events.of(events.Disconnected))
    assert kubelet.allocatable() == {RESOURCE: 1}
    with pytest.raises(Exception, match=f"code = Unavailable desc = .*dial unix {plugin.path}: connect: no such file"):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))

    # Only a restart of the kubelet cures it.
    await kubelet.restart()
    assert kubelet.allocatable() == {RESOURCE: 0}
    await plugin.serve()
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    await kubelet.until(allocatable={RESOURCE: 2})


async def test_a_failed_registration_orphans_the_living_client_of_older_kubelets(profile: str) -> None:
    async with SimulatedKubelet(profile=profile, dial_timeout=0.2) as kubelet:
        plugin = BarePlugin(kubelet.paths.device_plugin_dir)
        await plugin.serve()
        await plugin.register(kubelet.paths.kubelet_socket)
        await kubelet.until(allocatable={RESOURCE: 2})
        assert await plugin.register(kubelet.paths.kubelet_socket, endpoint="nobody.sock") is not None
        await plugin.stop()
        await kubelet.until(lambda: kubelet.events.of(events.StreamEnded))
        if kubelet.profile.one_client_per_resource:
            assert kubelet.allocatable() == {RESOURCE: 2}  # phantom devices
        else:
            await kubelet.until(allocatable={RESOURCE: 0})


async def test_a_list_beyond_four_mebibytes_ends_the_stream(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect()
    plugin.change({f"{number:063d}": "Healthy" for number in range(60_000)})
    await kubelet.until(lambda: kubelet.events.of(events.StreamEnded), allocatable={RESOURCE: 0}, timeout=PATIENCE)
    [ended] = kubelet.events.of(events.StreamEnded)
    assert ended.code == "RESOURCE_EXHAUSTED"
    assert ended.detail.startswith("grpc: received message larger than max (")
    assert ended.detail.endswith(" vs. 4194304)")


async def test_a_reader_that_stops_gets_what_is_newest_later(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect()
    kubelet.pause_reading(RESOURCE)
    plugin.change({"w0": "Unhealthy"})
    await kubelet.until(lambda: len(kubelet.events.of(events.ListReceived)) == 2)  # the read that was under way
    plugin.change({"w0": "Healthy", "w1": "Healthy", "w2": "Healthy"})
    await kubelet.plugin(RESOURCE).options()  # a round trip on the same connection: the list is there, unread
    assert len(kubelet.events.of(events.ListReceived)) == 2
    kubelet.resume_reading(RESOURCE)
    await kubelet.until(allocatable={RESOURCE: 3})


async def test_more_streams_on_one_connection_do_not_touch_the_table(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    extra = kubelet.plugin(RESOURCE).watch()
    assert [device.id for device in await extra.next() or ()] == ["w0", "w1"]
    assert plugin.streams == 2
    plugin.change({"w0": "Healthy"})
    assert [device.id for device in await extra.next() or ()] == ["w0"]
    await kubelet.until(capacity={RESOURCE: 1})
    plugin.end_streams()
    assert await extra.next() is None
    await kubelet.until(lambda: kubelet.events.of(events.Disconnected))
    assert len(kubelet.events.of(events.ListReceived)) == 2


async def test_a_duplicate_id_that_is_both_healthy_and_not_counts_twice(kubelet: SimulatedKubelet) -> None:
    plugin = BarePlugin(kubelet.paths.device_plugin_dir)
    twice = v1beta1.ListAndWatchResponse(
        devices=[v1beta1.Device(ID="w0", health="Healthy"), v1beta1.Device(ID="w0", health="Unhealthy")]
    )
    done = anyio.Event()

    async def watch(request: object, context: object) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        yield twice
        await done.wait()

    plugin._watch = watch  # type: ignore[method-assign]
    await plugin.serve()
    await plugin.register(kubelet.paths.kubelet_socket)
    await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
    done.set()
    await plugin.stop()


async def test_an_old_stream_that_ends_while_its_successor_is_dialed_strips_the_successors_record() -> None:
    async with SimulatedKubelet(profile="k136") as kubelet:
        old = BarePlugin(kubelet.paths.device_plugin_dir)
        await old.serve()
        await old.register(kubelet.paths.kubelet_socket)
        await kubelet.until(streaming=RESOURCE)
        new = BarePlugin(kubelet.paths.device_plugin_dir)
        answers: list[str | None] = []

        async def register() -> None:
            answers.append(await new.register(kubelet.paths.kubelet_socket))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(register)
            await kubelet.until(lambda: len(kubelet.events.of(events.RegisterReceived)) == 2)
            await old.stop()
            await kubelet.until(lambda: kubelet.events.of(events.Disconnected))
            await new.serve()  # only now can it be dialed
        assert answers == [None]
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        await new.stop()
        await kubelet.until(lambda: len(kubelet.events.of(events.StreamEnded)) == 2)
        assert kubelet.allocatable() == {RESOURCE: 2}, "nobody notices its end: phantom devices"
