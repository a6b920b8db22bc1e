"""A card against its slots: what a pod holds of one takes the others from the list, in a device plugin, too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.testing import AdmissionError, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, until
from .test_release import QUICK, lists

SLOT = "example.com/slot"


class Cards(Widgets):
    def __init__(self) -> None:
        super().__init__(
            *(kdp.Device(id=card, consumes={card: {"slots": 2}}) for card in ("c0", "c1")),
            *(
                kdp.Device(id=f"{card}-s{slot}", resource=SLOT, consumes={card: {"slots": 1}})
                for card in ("c0", "c1")
                for slot in range(2)
            ),
        )

    @override
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {card: {"slots": 2} for card in ("c0", "c1")}


async def test_a_pod_got_a_slot_of_a_card_that_another_pod_held(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(kubelet, Cards(), pace=QUICK) as manager:
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 4})
        first = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [card] = first.devices(RESOURCE)
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 2})
        await until(lambda: manager.holders(RESOURCE))  # else the next pod may have it, too, for an init container
        slot = await kubelet.admit(Pod.asking({SLOT: 1}))
        assert not slot.devices(SLOT)[0].startswith(card)
        await kubelet.until(allocatable={RESOURCE: 1, SLOT: 2})
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
        why = manager.status().resources[SLOT].listed[f"{card}-s0"].health.reason
        assert why == (
            f"its share is in use: it needs 1 of slots of {card}, and too little of 2 is left while these are "
            f"allocated: {card}"
        )
        await kubelet.delete(first.pod)
        await kubelet.until(allocatable={RESOURCE: 1, SLOT: 4})
    assert "WARNING" not in {record.levelname for record in caplog.records if "its share" in record.getMessage()}


async def test_an_allocate_that_comes_before_the_list_is_refused(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, Cards(), pace=QUICK):
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 4})
        kubelet.pause_reading(SLOT)
        both = [await kubelet.admit(Pod.asking({RESOURCE: 1})) for _ in range(2)]
        assert len(both) == 2
        with pytest.raises(AdmissionError, match="its share is in use"):
            await kubelet.admit(Pod.asking({SLOT: 1}))
        kubelet.resume_reading(SLOT)


@pytest.mark.parametrize("change", ["gone", "takes nothing"])
async def test_a_card_that_changed_while_a_pod_held_it_gave_its_slots_to_others(
    kubelet: SimulatedKubelet, change: str
) -> None:
    """What was allocated counts, and not what the hardware says of it now."""
    backend = Cards()
    async with connected(kubelet, backend, pace=QUICK) as manager:
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 4})
        pod = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        [card] = pod.devices(RESOURCE)
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 2})
        others = [device for device in backend.devices if device.id != card]
        backend.devices = others if change == "gone" else [*others, kdp.Device(id=card)]
        [supervisor] = manager.supervisors
        before = supervisor.discovered_at
        (await backend.report()).rescan()
        await until(lambda: supervisor.discovered_at != before)
        await lists(kubelet)
        assert kubelet.allocatable()[SLOT] == 2


async def test_replicas_switched_counters_off(kubelet: SimulatedKubelet) -> None:
    async with connected(kubelet, share(Cards(), Sharing(replicas=2)), pace=QUICK):
        await kubelet.until(allocatable={RESOURCE: 4, SLOT: 8})
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await kubelet.until(allocatable={RESOURCE: 4, SLOT: 4})


async def test_a_pod_that_asked_for_a_card_and_a_slot_was_refused_although_another_card_was_free(
    kubelet: SimulatedKubelet,
) -> None:
    """The kubelet allocates one resource after the other, and its list is older than the first Allocate."""
    async with connected(kubelet, Cards(), pace=QUICK) as manager:
        for _ in range(10):
            await kubelet.until(allocatable={RESOURCE: 2, SLOT: 4})
            pod = await kubelet.admit(Pod.asking({RESOURCE: 1, SLOT: 1}))
            await until(lambda: manager.holders(RESOURCE))
            await kubelet.delete(pod.pod)


async def test_counters_that_fail_keep_what_was_known(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Cards):
        fails = False
        poll_interval = 0.05

        @override
        def counters(self) -> Mapping[str, Mapping[str, int]]:
            if self.fails:
                raise OSError("the card does not answer")
            return super().counters()

    backend = Failing()
    async with connected(kubelet, backend, pace=QUICK):
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 4})
        backend.fails = True
        await until(lambda: "the card does not answer" in caplog.text)
        await kubelet.admit(Pod.asking({RESOURCE: 2}))
        await kubelet.until(allocatable={RESOURCE: 2, SLOT: 0})
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({SLOT: 1}))
