"""What a backend is told of who has its devices now."""

from __future__ import annotations

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.deviceplugin.options import Pace
from kdp.errors import InvalidValueError
from kdp.testing import Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, until

QUICK = Pace(gap=0.3, admission=0.2, look=0.1, settled=0.1, settling=0.0, between=0.05, after_connect=0.2, period=0.3)
NODE = kdp.ContainerEdits.of_node("/dev/null")


class Cards(Widgets):
    """Ask in a thread, as often as they are discovered."""

    poll_interval = 0.1

    def __init__(self, *devices: kdp.Device | str) -> None:
        super().__init__(*devices)
        self.seen: dict[str, tuple[str, ...]] | None = None
        self.answers: list[dict[str, tuple[str, ...]]] = []

    @override
    def discover(self) -> list[kdp.Device]:
        self.seen = dict(self.holdings())
        return [*super().discover()]

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.answers.append(dict(self.holdings()))
        return devices.edits()


@pytest.mark.parametrize("edits", [kdp.ContainerEdits(), NODE], ids=["counted", "with a node"])
async def test_a_device_is_held_from_its_allocate_until_its_pod_has_ended(
    kubelet: SimulatedKubelet, edits: kdp.ContainerEdits
) -> None:
    cards = Cards(*(kdp.Device(id=name, edits=edits) for name in ("w0", "w1")))
    async with connected(kubelet, cards, pace=QUICK):
        await until(lambda: cards.seen == {})
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}, name="train"))
        held = pod.devices(RESOURCE)[0]
        await until(lambda: cards.seen == {held: ("default/train",)})
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        assert cards.answers[1] == {held: ("default/train",)}
        await until(lambda: len(cards.seen or ()) == 2)
        await kubelet.delete(pod.pod)
        await until(lambda: cards.seen is not None and held not in cards.seen)


async def test_replicas_count_as_their_device(kubelet: SimulatedKubelet) -> None:
    cards = Cards("w0")
    async with connected(kubelet, share(cards, Sharing(replicas=2)), pace=QUICK):
        for name in ("one", "two"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}, name=name))
        await until(lambda: {*(cards.seen or {}).get("w0", ())} == {"default/one", "default/two"})
        assert [*(cards.seen or ())] == ["w0"]


async def test_a_restart_forgets_nobody(kubelet: SimulatedKubelet, tmp_path_factory: pytest.TempPathFactory) -> None:
    state = tmp_path_factory.mktemp("state")
    first, second = (Cards(kdp.Device(id="w0", edits=NODE)) for _ in range(2))
    async with connected(kubelet, first, pace=QUICK, state_dir=state):
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="train"))
    # It lists no more, and knows from the disk.
    async with connected(kubelet, second, pace=attrs.evolve(QUICK, after_connect=3600, period=3600), state_dir=state):
        await until(lambda: [*(second.seen or ())] == ["w0"])


def test_before_it_is_served_a_class_knows_of_nobody() -> None:
    with pytest.raises(InvalidValueError, match=r"^holdings of Cards is not known before open\(\)"):
        Cards().holdings()
