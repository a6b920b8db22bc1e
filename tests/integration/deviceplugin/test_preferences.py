"""Policies and sharing on a running plugin: GetPreferredAllocation, the flags, and a kubelet that follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Override, Sharing, share
from kdp.deviceplugin.inventory import MAX_LIST_BYTES
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, CallError, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, registers, running, until


class Linked(Widgets):
    """w0 and w3 are linked, and whatever a test adds; counts how often it is asked."""

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.pairs: dict[tuple[str, str], float] = {("w0", "w3"): 5.0}
        self.asked: list[list[str]] = []

    @override
    def links(self, devices: Sequence[kdp.Device]) -> Mapping[tuple[str, str], float]:
        self.asked.append([device.unit for device in devices])
        return dict(self.pairs)


FOUR = ("w0", "w1", "w2", "w3")


async def test_a_policy_answers_and_its_flag_is_told(k137: SimulatedKubelet) -> None:
    devices = [kdp.Device(id=f"w{i}", numa_nodes=(i % 2,)) for i in range(4)]
    async with connected(k137, Widgets(*devices), policy="numa"):
        assert registers(k137)[-1].preferred_allocation_available
        assert await k137.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w2")]
        pod = await k137.admit(Pod.asking({RESOURCE: 2}))
        assert sorted(pod.devices(RESOURCE)) == ["w0", "w2"]


async def test_without_a_policy_the_kubelet_is_not_told_to_ask(k137: SimulatedKubelet) -> None:
    async with connected(k137, Widgets(*FOUR)):
        assert not registers(k137)[-1].preferred_allocation_available


async def test_links_are_asked_when_the_units_change_and_never_in_a_request(k137: SimulatedKubelet) -> None:
    backend = Linked(*FOUR)
    async with connected(k137, backend) as manager:
        await until(lambda: backend.asked == [list(FOUR)])
        plugin = k137.plugin(RESOURCE)
        for _ in range(3):
            assert await plugin.preferred(FOUR, [], 2) == [("w0", "w3")]
        manager.rescan()
        await until(lambda: backend.discoveries > 1)
        backend.devices.append(kdp.Device(id="w4"))
        backend.pairs["w1", "w4"] = 9.0
        manager.rescan()
        await k137.until(capacity={RESOURCE: 5})
        await until(lambda: len(backend.asked) == 2)
        assert backend.asked == [list(FOUR), [*FOUR, "w4"]]
        assert await plugin.preferred([*FOUR, "w4"], [], 2) == [("w1", "w4")]


async def test_wrong_links_are_told_and_those_of_before_stay(
    k137: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Linked(*FOUR)
    async with connected(k137, backend) as manager:
        await until(lambda: backend.asked)
        assert await k137.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w3")]
        backend.pairs = {("w1", "w2"): float("nan")}
        backend.devices.append(kdp.Device(id="w4"))
        manager.rescan()
        await until(lambda: "the links of before stay in force" in caplog.text)
        assert "links() of Linked: link 'w1' to 'w2': nan must be a finite number" in caplog.text
        assert await k137.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w3")]


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [(FOUR, [], 0), (FOUR, [], 5), (FOUR[:2], ["w3"], 1), (FOUR, ["w0", "w1"], 1), ([], [], 1), (["gone"], [], 1)],
)
async def test_a_question_without_an_answer_gets_an_empty_one_and_is_counted(
    k137: SimulatedKubelet, caplog: pytest.LogCaptureFixture, available: Sequence[str], must: list[str], size: int
) -> None:
    async with connected(k137, Widgets(*FOUR), policy="spread") as manager:
        assert await k137.plugin(RESOURCE).preferred(available, must, size) == [()]
        assert manager.preferred["empty"] == 1
        assert "no preference" in caplog.text


async def test_a_hook_without_an_opinion_leaves_it_to_the_policy(k137: SimulatedKubelet) -> None:
    class Undecided(Widgets):
        policy = "numa"

        @override
        def prefer(self, request: kdp.PreferRequest) -> list[str] | None:
            return ["w3"] if request.size == 1 else None

    devices = [kdp.Device(id=f"w{i}", numa_nodes=(i % 2,)) for i in range(4)]
    # A loaded machine may be late; here it is not the deadline that is tested.
    async with connected(k137, Undecided(*devices), deadlines=Deadlines(prefer=5)):
        assert await k137.plugin(RESOURCE).preferred(FOUR, [], 1) == [("w3",)]
        assert await k137.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w2")]


# -- sharing -----------------------------------------------------------------------------------------------------------


def widget(name: str) -> kdp.Device:
    return kdp.Device(id=name, edits=kdp.ContainerEdits(env={name.upper(): "yes"}))


async def test_two_pods_share_a_device_and_one_pod_gets_different_ones(kubelet: SimulatedKubelet) -> None:
    shared = share(Widgets(widget("a"), widget("b")), Sharing(replicas=2))
    async with connected(kubelet, shared):
        assert kubelet.node_status().capacity[RESOURCE] == 4
        for _ in range(2):
            pod = await kubelet.admit(Pod.asking({RESOURCE: 2}))
            assert dict(pod.reply().envs) == {"A": "yes", "B": "yes"}
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_packed_replicas_leave_whole_devices_whole(k137: SimulatedKubelet) -> None:
    shared = share(Widgets(widget("a"), widget("b")), Sharing(replicas=3, placement="packed"))
    async with connected(k137, shared):
        held = [await k137.admit(Pod.asking({RESOURCE: 1})) for _ in range(3)]
        assert [dict(pod.reply().envs) for pod in held] == [{"A": "yes"}] * 3


async def test_a_limit_is_the_pods_authors_sentence(k137: SimulatedKubelet) -> None:
    shared = share(Widgets(widget("a"), widget("b")), Sharing(replicas=2, limit=1))
    async with connected(k137, shared):
        with pytest.raises(AdmissionError, match="asks for 2 replicas of shared devices, at most 1 are allowed here"):
            await k137.admit(Pod.asking({RESOURCE: 2}))
        await k137.admit(Pod.asking({RESOURCE: 1}))


async def test_a_fault_of_a_device_takes_all_its_replicas_and_no_other(k137: SimulatedKubelet) -> None:
    backend = Widgets("a", "b")
    async with connected(k137, share(backend, Sharing(replicas=1, overrides=[Override("a", 3)]))):
        reporter = await backend.report()
        reporter.fault("a", "XID 79", kind="xid")
        await k137.until(allocatable={RESOURCE: 1})
        assert k137.node_status().capacity[RESOURCE] == 4
        reporter.clear("a", kind="xid")
        await k137.until(allocatable={RESOURCE: 4})


async def test_a_renamed_resource_stands_beside_the_unshared_one(k137: SimulatedKubelet) -> None:
    shared = share(Widgets("a", "b"), Sharing(overrides=[Override("b", 2)], rename=True))
    async with connected(k137, shared):
        await k137.until(capacity={RESOURCE: 1, f"{RESOURCE}.shared": 2})


async def test_replicas_beyond_one_list_are_refused_and_say_how_many_fit(
    k137: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    many = [f"{'x' * 50}-{i}" for i in range(60)]
    async with running(k137, share(Widgets(*many), Sharing(replicas=1000))) as manager:
        await until(lambda: "devices can need" in caplog.text)
        await until(lambda: manager.status().resources[RESOURCE].too_large is not None)
        assert str(manager.status().resources[RESOURCE].details["too_large"]).startswith("60000 devices can need ")
        assert f"the kubelet takes {MAX_LIST_BYTES}" in caplog.text
        assert "fewer replicas" in caplog.text
        assert not registers(k137)


async def test_a_reply_names_an_unknown_replica(k137: SimulatedKubelet) -> None:
    async with connected(k137, share(Widgets("a"), Sharing(replicas=2))):
        with pytest.raises(CallError, match="has no device 'a::2'"):
            await k137.plugin(RESOURCE).allocate(["a::2"])
