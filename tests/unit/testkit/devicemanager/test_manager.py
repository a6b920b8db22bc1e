"""The device manager's decisions, without a socket."""

from __future__ import annotations

import re

import pytest

from kdp_testkit.devicemanager.assignments import AllocationRefused, AlreadyConnected, Assignment, Endpoint
from kdp_testkit.protocol.pods import Container, ContainerReply, Pod
from kdp_testkit.protocol.wire import ListedDevice, PluginOptions

from ..fakes import RESOURCE, Calls, Node


def asking(count: int, *, name: str = "p") -> Pod:
    return Pod.asking({RESOURCE: count}, name=name)


async def allocate(node: Node, pod: Pod, calls: Calls | None = None) -> Calls:
    calls = calls or Calls()
    node.pods.add(pod.uid)
    for container in pod.in_order:
        await node.manager.allocate(pod, container, calls)
    return calls


class TestTable:
    def test_capacity_counts_all_and_allocatable_the_healthy(self) -> None:
        node = Node()
        node.register("a", "b", "!c")
        assert node.manager.capacity() == ({RESOURCE: 3}, {RESOURCE: 2}, set())
        node.list("a")
        assert node.manager.capacity() == ({RESOURCE: 1}, {RESOURCE: 1}, set())
        node.list()
        assert node.manager.capacity() == ({RESOURCE: 0}, {RESOURCE: 0}, set())

    def test_the_last_entry_of_a_repeated_id_is_kept_but_both_are_counted(self) -> None:
        node = Node()
        node.register("a", "!a", "b", "b")
        assert node.manager.capacity()[:2] == ({RESOURCE: 3}, {RESOURCE: 2})
        assert node.manager.devices[RESOURCE]["a"].health == "Unhealthy"

    def test_any_other_text_is_unhealthy(self) -> None:
        node = Node()
        node.register()
        node.manager.listed(RESOURCE, [ListedDevice("a", "healthy", None)])
        assert node.manager.capacity()[:2] == ({RESOURCE: 1}, {RESOURCE: 0})


class TestEnd:
    def test_of_the_only_plugin_makes_everything_unhealthy_and_is_forgotten_later(self) -> None:
        node = Node()
        node.register("a", "!b")
        node.manager.disconnected(RESOURCE, "/a")
        assert node.manager.capacity() == ({RESOURCE: 2}, {RESOURCE: 0}, set())
        node.clock.now += 300
        assert node.manager.capacity()[0] == {RESOURCE: 2}
        node.clock.now += 0.001
        assert node.manager.capacity() == ({}, {}, {RESOURCE})
        assert node.manager.capacity() == ({}, {}, set())
        assert not node.manager.is_known(RESOURCE)

    @pytest.mark.parametrize("one_endpoint", [True, False])
    def test_of_one_of_two(self, one_endpoint: bool) -> None:
        node = Node(one_endpoint_per_resource=one_endpoint)
        first = node.register("a", path="/1")
        second = node.register("a", "b", path="/2")
        node.manager.disconnected(RESOURCE, "/2")
        if one_endpoint:
            assert node.manager.endpoints[RESOURCE] is second
            assert second.stopped_at is not None
            assert node.manager.capacity()[1] == {RESOURCE: 0}
        else:
            assert node.manager.endpoints[RESOURCE] is first, "the survivor takes over"
            assert node.manager.capacity()[1] == {RESOURCE: 2}, "the table stays as it was listed last"
            node.manager.disconnected(RESOURCE, "/2")
            assert node.manager.capacity()[1] == {RESOURCE: 2}, "an unknown path is nobody"

    def test_a_new_registration_in_time_forgets_nothing(self) -> None:
        node = Node()
        node.register("a", path="/1")
        node.manager.disconnected(RESOURCE, "/1")
        node.clock.now += 299
        node.manager.connected(Endpoint(RESOURCE, "/2", PluginOptions()))
        node.clock.now += 1000
        assert node.manager.capacity() == ({RESOURCE: 1}, {RESOURCE: 0}, set()), "unhealthy until its first list"


def test_a_path_that_is_on_record_is_refused() -> None:
    node = Node()
    node.register("a", path="/1")
    with pytest.raises(AlreadyConnected, match=r"^device plugin already connected: /1$"):
        node.register("a", path="/1")
    Node(one_endpoint_per_resource=True).register("a", path="/1")
    node.register("b", path="/1", resource="example.com/other")


async def test_a_checkpoint_gives_names_and_assignments_but_no_devices() -> None:
    node = Node()
    held = Assignment({-1: ("a",)}, ContainerReply(envs={"A": "1"}))
    node.manager.restore([RESOURCE], {"uid-p": {"main": {RESOURCE: held}}})
    node.pods.add("uid-p")
    assert node.manager.capacity() == ({RESOURCE: 0}, {RESOURCE: 0}, set())
    assert node.manager.booked(RESOURCE) == {"a"}
    with pytest.raises(AllocationRefused, match="no healthy devices present"):
        await allocate(node, asking(1))
    node.manager.sources_ready = False
    node.running.add(("uid-p", "main"))
    assert (await allocate(node, asking(1))).made == []
    assert node.manager.given("uid-p", "main").reply.envs == {"A": "1"}
    node.clock.now += 301
    assert node.manager.capacity()[2] == {RESOURCE}


class TestAllocate:
    async def test_takes_free_healthy_devices_and_remembers_them(self) -> None:
        node = Node()
        node.register("a", "!b", "c")
        calls = await allocate(node, asking(2))
        assert calls.made == [("allocate", ("a", "c"))]
        assert calls.saved == 1
        assert node.manager.booked(RESOURCE) == {"a", "c"}
        again = await allocate(node, asking(2), Calls())
        assert again.made == []
        assert again.saved == 0

    async def test_a_resource_that_was_allocated_before_but_is_not_registered(self) -> None:
        node = Node()
        node.register("a")
        await allocate(node, asking(1))
        node.manager.disconnected(RESOURCE, "/a")
        node.clock.now += 301
        node.manager.capacity()
        with pytest.raises(AllocationRefused, match=r"^cannot allocate unregistered device example.com/widget$"):
            await allocate(node, asking(1, name="q"))

    async def test_one_of_its_devices_is_not_healthy_any_more(self) -> None:
        node = Node()
        node.register("a", "b")
        await allocate(node, asking(2))
        node.list("a", "!b")
        with pytest.raises(AllocationRefused, match="previously allocated devices are no longer healthy"):
            await allocate(node, asking(2))

    async def test_a_failed_call_frees_the_choice_and_an_empty_reply_does_not(self) -> None:
        node = Node()
        node.register("a")
        calls = Calls()
        calls.error = RuntimeError("no")
        with pytest.raises(RuntimeError, match="no"):
            await allocate(node, asking(1), calls)
        assert node.manager.booked(RESOURCE) == set()
        calls.error, calls.replies = None, []
        with pytest.raises(AllocationRefused, match="no containers return in allocation response"):
            await allocate(node, asking(1), calls)
        assert node.manager.booked(RESOURCE) == {"a"}

    async def test_devices_of_finished_pods_are_freed_before_an_allocation_once_sources_are_ready(self) -> None:
        node = Node()
        node.register("a")
        await allocate(node, asking(1))
        node.pods.clear()
        assert node.manager.booked(RESOURCE) == {"a"}, "lazily"
        node.manager.sources_ready = False
        with pytest.raises(AllocationRefused, match="Available: 0"):
            await allocate(node, asking(1, name="q"))
        node.manager.sources_ready = True
        await allocate(node, asking(1, name="q"))

    async def test_ordinary_init_containers_hand_on_and_sidecars_keep(self) -> None:
        node = Node()
        node.register("a", "b", "c", "d")
        pod = Pod(
            init_containers=[
                Container("first", {RESOURCE: 2}),
                Container("sidecar", {RESOURCE: 1}, restartable=True),
                Container("second", {RESOURCE: 1}),
            ],
            containers=[Container("main", {RESOURCE: 2}), Container("other", {RESOURCE: 1})],
        )
        await allocate(node, pod)
        got = {c.name: set(node.manager.given(pod.uid, c.name).devices[RESOURCE]) for c in pod.in_order}
        assert got["sidecar"] < got["first"]
        assert got["second"] == got["first"] - got["sidecar"]
        assert got["second"] < got["main"]
        assert not got["main"] & got["sidecar"]
        assert not got["other"] & (got["main"] | got["sidecar"])
        assert node.manager.booked(RESOURCE) == {"a", "b", "c", "d"}

    async def test_numa_nodes_are_recorded(self) -> None:
        node = Node()
        node.register()
        node.manager.listed(
            RESOURCE,
            [
                ListedDevice("a", "Healthy", (0, 1)),
                ListedDevice("b", "Healthy", ()),
                ListedDevice("c", "Healthy", (1,)),
            ],
        )
        await allocate(node, asking(3))
        assert node.manager.assignments["uid-p"]["main"][RESOURCE].by_numa_node == {
            0: ("a",),
            1: ("a", "c"),
            -1: ("b",),
        }


class TestPreference:
    PREFERS = PluginOptions(preferred_allocation_available=True)

    async def test_is_asked_for_with_all_that_is_free_and_what_is_chosen(self) -> None:
        node = Node()
        node.register("a", "b", "c", options=self.PREFERS)
        pod = Pod(init_containers=[Container("i", {RESOURCE: 1})], containers=[Container("main", {RESOURCE: 2})])
        calls = Calls()
        calls.preference = ["c"]
        await allocate(node, pod, calls)
        assert calls.asked == ({"a", "b", "c"}, {"c"}, 2)

    @pytest.mark.parametrize(
        ("answer", "at_least"),
        [(["b", "c"], {"b", "c"}), (["b", "b", "x"], {"b"})],
    )
    async def test_is_intersected_filled_and_trimmed(self, answer: list[str], at_least: set[str]) -> None:
        node = Node()
        node.register("a", "b", "c", options=self.PREFERS)
        calls = Calls()
        calls.preference = answer
        await allocate(node, asking(2), calls)
        got = node.manager.booked(RESOURCE)
        assert len(got) == 2
        assert at_least <= got

    async def test_what_is_taken_of_a_surplus_is_up_to_chance(self) -> None:
        seen = set()
        for seed in range(30):
            node = Node(seed=seed)
            node.register("a", "b", "c", options=self.PREFERS)
            calls = Calls()
            calls.preference = ["a", "b", "c"]
            await allocate(node, asking(1), calls)
            seen |= node.manager.booked(RESOURCE)
        assert seen == {"a", "b", "c"}

    async def test_a_stopped_plugin_is_not_asked(self) -> None:
        node = Node(one_endpoint_per_resource=True)
        node.register("a", options=self.PREFERS)
        node.manager.disconnected(RESOURCE, "/a")
        node.list("a")  # a stream that lives on feeds the table (contract section 2.5)
        with pytest.raises(AllocationRefused, match=r"endpoint .* example.com/widget .* has been stopped"):
            await allocate(node, asking(1))


class TestStart:
    PRE_STARTS = PluginOptions(pre_start_required=True)

    async def test_calls_pre_start_where_it_is_wanted(self) -> None:
        node = Node()
        node.register("a", options=self.PRE_STARTS)
        pod = asking(1)
        calls = await allocate(node, pod)
        given = await node.manager.start(pod, pod.containers[0], calls)
        assert calls.made[-1] == ("pre_start", ("a",))
        assert given.devices == {RESOURCE: ("a",)}
        calls.error = RuntimeError("boom")
        with pytest.raises(AllocationRefused, match=r"^device plugin PreStartContainer rpc failed with err: boom$"):
            await node.manager.start(pod, pod.containers[0], calls)

    async def test_is_silent_after_a_restart_of_the_kubelet_until_the_plugin_is_back(self) -> None:
        node = Node()
        held = Assignment({-1: ("a",)}, ContainerReply())
        node.manager.restore([RESOURCE], {"uid-p": {"main": {RESOURCE: held}}})
        node.pods.add("uid-p")
        calls = Calls()
        await node.manager.start(asking(1), asking(1).containers[0], calls)
        assert calls.made == []

    async def test_fails_once_the_resource_is_forgotten(self) -> None:
        node = Node()
        node.register("a")
        pod = asking(1)
        calls = await allocate(node, pod)
        node.manager.disconnected(RESOURCE, "/a")
        node.clock.now += 301
        node.manager.capacity()
        with pytest.raises(AllocationRefused, match="endpoint not found in cache for a registered resource"):
            await node.manager.start(pod, pod.containers[0], calls)

    async def test_without_a_cached_state_the_container_is_allocated_now(self) -> None:
        node = Node()
        node.register("a")
        pod = asking(1)
        node.pods.add(pod.uid)
        calls = Calls()
        given = await node.manager.start(pod, pod.containers[0], calls)
        assert given.devices == {RESOURCE: ("a",)}

    async def test_pre_start_without_devices_in_the_cache(self) -> None:
        node = Node()
        node.register("a", options=self.PRE_STARTS)
        pod = asking(1)
        with pytest.raises(
            AllocationRefused, match="no devices found allocated in local cache for pod uid-p, container"
        ):
            await node.manager.start(pod, pod.containers[0], Calls())


@pytest.mark.parametrize(("one_endpoint", "path"), [(True, ""), (False, " /a")])
async def test_a_stopped_endpoint_is_printed_as_go_prints_it(one_endpoint: bool, path: str) -> None:
    node = Node(one_endpoint_per_resource=one_endpoint)
    node.register("w0", options=PluginOptions(pre_start_required=True))
    pod = asking(1)
    await allocate(node, pod)
    node.manager.disconnected(RESOURCE, "/a")
    with pytest.raises(AllocationRefused) as refused:
        await node.manager.start(pod, pod.containers[0], Calls())
    assert re.fullmatch(
        r"device plugin PreStartContainer rpc failed with err: endpoint &\{\{\{\} \{0 0\}\} example\.com/widget"
        + path
        + r" 0x[0-9a-f]+ \{\d+ -?\d+ 0x[0-9a-f]+\} <nil>\} has been stopped",
        str(refused.value),
    )


class TestHealth:
    async def test_of_a_pods_devices_is_told_by_the_last_list_and_healthy_where_they_are_not_in_it(self) -> None:
        node = Node()
        node.register("w0", "w1")
        pod = asking(2)
        await allocate(node, pod)
        node.list("!w0", "w1")
        assert node.manager.health(pod) == {"main": {RESOURCE: {"w0": "Unhealthy", "w1": "Healthy"}}}
        node.list("w1")
        assert node.manager.health(pod) == {"main": {RESOURCE: {"w0": "Healthy", "w1": "Healthy"}}}

    async def test_concerns_a_pod_when_a_device_changes_or_is_back_and_not_when_it_vanishes(self) -> None:
        node = Node()
        node.register("w0", "w1")
        pod = asking(2)
        await allocate(node, pod)
        listed = [ListedDevice("w0", "Unhealthy", None), ListedDevice("w1", "Healthy", None)]
        assert node.manager.listed(RESOURCE, listed) == {pod.uid}
        assert node.manager.listed(RESOURCE, listed) == set()
        assert node.manager.listed(RESOURCE, listed[1:]) == set()
        assert node.manager.listed(RESOURCE, listed) == {pod.uid}

    @pytest.mark.parametrize(("by_id_alone", "concerned"), [(True, {"uid-p"}), (False, set[str]())])
    async def test_up_to_136_a_device_of_another_resource_with_the_same_id_concerns_it_too(
        self, by_id_alone: bool, concerned: set[str]
    ) -> None:
        node = Node(one_endpoint_per_resource=by_id_alone)
        node.register("d0")
        node.register("d0", path="/b", resource="example.com/gadget")
        pod = asking(1)
        await allocate(node, pod)
        assert node.manager.listed("example.com/gadget", [ListedDevice("d0", "ill", None)]) == concerned
