"""Policies and sharing on a running plugin: GetPreferredAllocation, the flags, and a kubelet that follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, registers, until


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


async def test_a_policy_answers_and_its_flag_is_told(kubelet: SimulatedKubelet) -> None:
    devices = [kdp.Device(id=f"w{i}", numa_nodes=(i % 2,)) for i in range(4)]
    async with connected(kubelet, Widgets(*devices), policy="numa"):
        assert registers(kubelet)[-1].preferred_allocation_available
        assert await kubelet.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w2")]
        pod = await kubelet.admit(Pod.asking({RESOURCE: 2}))
        assert sorted(pod.devices(RESOURCE)) == ["w0", "w2"]


async def test_links_are_asked_when_the_units_change_and_never_in_a_request(kubelet: SimulatedKubelet) -> None:
    backend = Linked(*FOUR)
    async with connected(kubelet, backend) as manager:
        await until(lambda: backend.asked == [list(FOUR)])
        plugin = kubelet.plugin(RESOURCE)
        for _ in range(3):
            assert await plugin.preferred(FOUR, [], 2) == [("w0", "w3")]
        manager.rescan()
        await until(lambda: backend.discoveries > 1)
        backend.devices.append(kdp.Device(id="w4"))
        backend.pairs["w1", "w4"] = 9.0
        manager.rescan()
        await kubelet.until(capacity={RESOURCE: 5})
        await until(lambda: len(backend.asked) == 2)
        assert backend.asked == [list(FOUR), [*FOUR, "w4"]]
        assert await plugin.preferred([*FOUR, "w4"], [], 2) == [("w1", "w4")]


async def test_wrong_links_are_told_and_those_of_before_stay(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Linked(*FOUR)
    async with connected(kubelet, backend) as manager:
        await until(lambda: backend.asked)
        assert await kubelet.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w3")]
        backend.pairs = {("w1", "w2"): float("nan")}
        backend.devices.append(kdp.Device(id="w4"))
        manager.rescan()
        await until(lambda: "the previous links stay in force" in caplog.text)
        assert "links() of Linked: link 'w1' to 'w2': nan must be a finite number" in caplog.text
        assert await kubelet.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w3")]


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [(FOUR, [], 5), (["gone"], [], 1)],
)
async def test_a_question_without_an_answer_gets_an_empty_one_and_is_told(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, available: Sequence[str], must: list[str], size: int
) -> None:
    async with connected(kubelet, Widgets(*FOUR), policy="spread"):
        assert await kubelet.plugin(RESOURCE).preferred(available, must, size) == [()]
        assert "no preference" in caplog.text


async def test_a_hook_without_an_opinion_leaves_it_to_the_policy(kubelet: SimulatedKubelet) -> None:
    class Undecided(Widgets):
        policy = "numa"

        @override
        def prefer(self, request: kdp.PreferRequest) -> list[str] | None:
            return ["w3"] if request.size == 1 else None

    devices = [kdp.Device(id=f"w{i}", numa_nodes=(i % 2,)) for i in range(4)]
    # A loaded machine may be late; here it is not the deadline that is tested.
    async with connected(kubelet, Undecided(*devices), deadlines=Deadlines(prefer=5)):
        assert await kubelet.plugin(RESOURCE).preferred(FOUR, [], 1) == [("w3",)]
        assert await kubelet.plugin(RESOURCE).preferred(FOUR, [], 2) == [("w0", "w2")]


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
