"""The pods API in place of lists: fewer looks, and no held device is taken for free."""

from __future__ import annotations

import random

import pytest
from typing_extensions import override

from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import allocations as real
from kdp.deviceplugin.tracking.allocation_record import AllocationRecord
from kdp.deviceplugin.tracking.allocations import Allocations

from ...mutants import live
from .test_allocations_properties import Node

R = "a/b"
POD, OTHER = ("default", "one"), ("default", "other")
PACE = Pace()


class KnownNode(Node):
    """A node whose kubelet says which pods run, at some moments; invariant 1 is asked, as the diary knows no UIDs."""

    exact = False

    def __init__(self) -> None:
        super().__init__()
        self.uids: dict[str, str] = {}

    @override
    def allocate(self, rng: random.Random) -> None:
        before = {*self.names}
        super().allocate(rng)
        for name in {*self.names} - before:
            self.uids[name] = f"uid-{next(self.numbers)}"

    def know(self, rng: random.Random) -> None:
        self.holdings.know_pods({pod: self.uids.get(pod[1], pod[1]) for pod in self.listed_pods}, self.now)

    ACTIONS = (*Node.ACTIONS, know, know, know)  # type: ignore[assignment]


def test_no_held_device_is_released_because_of_the_pods_api() -> None:
    live(KnownNode, examples=200, steps=4, number=0, shrinks=True, module=real, exact=False)


def given(allocations: Allocations, at: float) -> AllocationRecord:
    """An Allocate of one device."""
    record = AllocationRecord(uid=f"u{at}", resource=R, ids=("w0",), state={})
    allocations.begin(R, ["w0"], at)
    allocations.add(record, at)
    allocations.end(R, ["w0"], at, given=True)
    return record


def test_a_held_device_needs_no_look_while_its_pod_runs() -> None:
    allocations = Allocations(PACE)
    given(allocations, 0.0)
    assert allocations.next_look(is_settled=True) == real.FIRST_LOOK  # no list has named it
    allocations.listed({(R, "w0"): (POD,)}, [POD], asked_at=1.0, now=1.0, is_complete=True)
    assert allocations.next_look(is_settled=True) == float("inf")
    assert allocations.next_look() == 1.0 + PACE.look
    allocations.listed({}, [], asked_at=9.0, now=9.0, is_complete=True)  # the end needs a second list as ever
    assert allocations.next_look(is_settled=True) == 9.0 + PACE.gap


def test_a_device_of_an_init_container_needs_no_look_while_its_suspects_run() -> None:
    allocations = Allocations(PACE)
    record = given(allocations, 0.0)
    allocations.listed({}, [POD], asked_at=1.0, now=1.0, is_complete=True)
    allocations.listed({}, [POD], asked_at=40.0, now=40.0, is_complete=True)
    assert allocations.all_suspects == {POD}
    assert allocations.next_look(is_settled=True) == float("inf")
    outcome = allocations.listed({}, [], asked_at=80.0, now=80.0, is_complete=True)
    assert outcome.ended == (record,)


@pytest.mark.parametrize(("uid", "suspects"), [("same", {OTHER}), ("another", {OTHER, POD})])
def test_pods_that_were_there_before_an_allocate_are_no_suspects(uid: str, suspects: set[tuple[str, str]]) -> None:
    """So a list is needed for that no more; a pod that was made anew under its name is another one."""
    allocations = Allocations(PACE)
    for at in range(0, 1000, 30):
        allocations.know_pods({POD: "same"}, float(at))
    allocations.know_pods({POD: uid}, 1000.0)
    given(allocations, 1001.0)
    allocations.listed({}, [POD, OTHER], asked_at=1002.0, now=1002.0, is_complete=True)
    assert allocations.all_suspects == suspects


def test_after_a_break_any_pod_may_be_another_one() -> None:
    allocations = Allocations(PACE)
    allocations.know_pods({POD: "same"}, 0.0)
    allocations.know_pods({POD: "same"}, 1000.0)
    given(allocations, 1001.0)
    allocations.listed({}, [POD], asked_at=1002.0, now=1002.0, is_complete=True)
    assert allocations.all_suspects == {POD}
