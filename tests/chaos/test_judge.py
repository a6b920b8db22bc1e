"""The judge sees a lost allocation, excuses only what a crash could lose, and judges states and nodes."""

from __future__ import annotations

import pytest

from .dra.judge import DraJudge
from .judge import Judge

TOY = "example.com/toy"


def _given(judge: Judge, number: str, *ids: str, pod: str = "pod", saved: bool = True) -> None:
    nodes = [f"/dev/{device}" for device in ids]
    judge.allocated(number, ids, nodes)
    envs = {"TOY_NUMBER": number, "TOYS": ",".join(ids)}
    judge.admitted(pod, ids, envs, nodes, resource=TOY, saved=saved)


def test_an_allocation_that_nobody_remembers_is_forgotten_while_its_pod_lives() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    _given(judge, "second", "toy1", pod="other")
    assert judge.forgotten({"first"}) == ["second of toy1"]
    assert judge.forgotten({"first", "second"}) == []


@pytest.mark.parametrize(
    ("saved", "has_survived", "excused", "is_owed"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (False, True, True, True),
        (False, False, False, True),
    ],
)
def test_only_what_could_not_be_saved_is_excused(
    *, saved: bool, has_survived: bool, excused: bool, is_owed: bool
) -> None:
    judge = Judge()
    _given(judge, "first", "toy0", saved=saved)
    if has_survived:
        judge.survived(["first"])
    judge.died(excused=excused)
    judge.leaving("pod")
    assert judge.lost == (["first"] if is_owed else [])


def test_a_peace_ends_the_excuse() -> None:
    judge = Judge()
    _given(judge, "first", "toy0", saved=False)
    judge.saved({"first": 0}, listed=())
    judge.died(excused=True)
    judge.leaving("pod")
    assert judge.lost == ["first"]


def test_files_that_are_removed_before_a_process_has_read_them_are_lost() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    _given(judge, "second", "toy1", pod="other")
    judge.files_removed({"second"})
    assert judge.forgotten([]) == ["second of toy1"]


def test_an_excused_allocation_may_be_released_without_its_state() -> None:
    judge = Judge()
    _given(judge, "first", "toy0", "toy1", saved=False)
    judge.died(excused=True)
    judge.leaving("pod")
    assert judge.lost == []
    judge.released(None, ["toy0"])
    judge.released(None, ["toy1"])
    assert judge.violations == []


def test_a_lost_allocation_of_a_device_that_has_moved_was_taken_for_a_violation() -> None:
    """Its release has the name that its node has now."""
    judge = Judge()
    _given(judge, "first", "toy0", saved=False)
    _given(judge, "second", "toy1", pod="other")
    judge.died(excused=True)
    judge.leaving("pod")
    judge.leaving("other")
    judge.released(None, ["moved0"], ["/dev/toy0"])
    assert judge.violations == []
    judge.released(None, ["moved1"], ["/dev/toy1"])
    assert [text[:6] for text in judge.violations] == ["rule 3"]


def test_a_release_with_an_empty_state_needs_a_crash() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.leaving("pod")
    judge.released(None, ["toy0"])
    assert [text[:6] for text in judge.violations] == ["rule 3"]


def test_a_release_with_an_empty_state_may_come_again_after_a_crash_until_a_peace() -> None:
    judge = Judge()
    _given(judge, "first", "toy0", saved=False)
    judge.died(excused=True)
    judge.leaving("pod")
    for _ in range(2):
        judge.released(None, ["toy0"])
        judge.died(excused=True)
    assert judge.violations == [], "the disk could not take that it was released"
    judge.saved({}, listed=())
    judge.released(None, ["toy0"])
    assert [text[:6] for text in judge.violations] == ["rule 3"]


def test_an_allocate_that_was_cut_off_may_be_released_without_a_state_while_the_disk_has_it() -> None:
    judge = Judge()
    for _ in range(2):
        judge.intended({"uid": ["toy0"]})
        judge.died(excused=False)
        judge.released(None, ["toy0"])
    assert judge.violations == []
    judge.died(excused=False)
    judge.released(None, ["toy0"])
    assert [text[:6] for text in judge.violations] == ["rule 3"]


def test_a_card_that_was_renamed_after_an_allocate_was_cut_off_is_released_by_its_new_name() -> None:
    judge = Judge()
    judge.intended({"uid": ["toy0", "toy1"]}, {"toy0": "/dev/toy0", "toy1": "/dev/toy1", "toy2": "/dev/toy2"})
    judge.released(None, ["moved0", "toy1"], ["/dev/toy0", "/dev/toy1"])
    assert judge.violations == []
    judge.released(None, ["moved2"], ["/dev/toy2"])
    assert [text[:6] for text in judge.violations] == ["rule 3"]


def test_a_release_of_a_device_that_another_pod_may_have_is_not_due() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.saved({"first": 0}, listed=["first"])
    judge.leaving("pod")
    assert judge.due(all_=False, there=["toy0"]) == ["first of toy0"]
    _given(judge, "second", "toy0", pod="other")
    assert judge.due(all_=False, there=["toy0"]) == []
    assert judge.due(all_=True, there=["toy0"]) == ["first of toy0"]


def test_a_device_that_is_away_cannot_be_scrubbed() -> None:
    judge = Judge(scrubs=True)
    _given(judge, "first", "toy0")
    judge.leaving("pod")
    assert judge.due(all_=True, there=[]) == []
    assert judge.due(all_=True, there=["toy0"]) == ["first of toy0"]


def test_a_container_gets_the_state_of_its_own_allocation() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.prepared("first", ["toy0"])
    judge.started("pod", {"TOY_NUMBER": "first"})
    assert judge.violations == []
    judge.prepared("older", ["toy0"])
    assert [text[:7] for text in judge.violations] == ["rule 11"]


def test_a_container_is_told_its_own_number_at_each_start() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.prepared("first", ["toy0"])
    judge.started("pod", {"TOY_NUMBER": "older"})
    assert [text[:6] for text in judge.violations] == ["rule 1"]


def test_a_device_is_released_between_two_containers_if_it_is_scrubbed() -> None:
    judge = Judge(scrubs=True)
    _given(judge, "first", "toy0")
    judge.prepared("first", ["toy0"])
    judge.leaving("pod")
    _given(judge, "second", "toy0", pod="other")
    judge.prepared("second", ["toy0"])
    assert [text[:7] for text in judge.violations] == ["rule 11"]


def test_a_card_is_not_released_for_an_earlier_pod_while_a_later_one_has_it() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.leaving("pod")
    _given(judge, "second", "toy0", pod="other")
    judge.released("first", ["toy0"], ["/dev/toy0"])
    assert [text[:6] for text in judge.violations] == ["rule 2"]


def test_a_card_that_has_another_name_is_scrubbed_all_the_same() -> None:
    judge = Judge(scrubs=True)
    _given(judge, "first", "toy0")
    judge.prepared("first", ["toy0"])
    judge.leaving("pod")
    judge.allocated("second", ["moved1"], ["/dev/toy0"])
    judge.prepared("second", ["moved1"])
    assert [text[:7] for text in judge.violations] == ["rule 11"]


def test_a_hook_gets_the_state_as_the_hook_before_has_left_it() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.counted("first", ["toy0"], 1, hook="prepare_container")
    judge.died(excused=False)
    judge.counted("first", ["toy0"], 1, hook="prepare_container")
    assert judge.violations == [], "the process was killed before it could save"
    judge.saved({"first": 1}, listed=())
    judge.died(excused=False)
    for calls in (2, 2):
        judge.counted("first", ["toy0"], calls, hook="released")
    assert [text[:7] for text in judge.violations] == ["rule 11"]


def test_two_names_of_one_node_are_one_device() -> None:
    judge = Judge()
    _given(judge, "first", "toy0")
    judge.allocated("second", ["moved1"], ["/dev/toy0"])
    envs = {"TOY_NUMBER": "second", "TOYS": "moved1"}
    judge.admitted("other", ["moved1"], envs, ["/dev/toy0"], resource=TOY, saved=True)
    assert [text[:7] for text in judge.violations] == ["rule 10"]


def test_a_device_is_not_prepared_again_before_an_owed_release() -> None:
    judge = DraJudge()
    for uid in ("one", "two"):
        judge.allocated_by_scheduler(uid, uid, {"r0": ("toy0",)})
    answer = [("pool", "toy0", ("id",))]
    envs = {"id": {"TOY_TOY0": "toy0", "NUMBER_R0": "1"}}
    judge.allocated("one", "r0", "1", ["toy0"], is_recorded=True)
    judge.pre_started("one", "r0", "1", ["toy0"])
    judge.prepared("one", answer, envs)
    judge.leaving("one")
    judge.unprepared("one")
    assert judge.owed_after_unprepare == ["one/r0"]
    judge.allocated("two", "r0", "2", ["toy0"], is_recorded=False)
    judge.pre_started("two", "r0", "2", ["toy0"])
    judge.prepared("two", answer, {"id": {**envs["id"], "NUMBER_R0": "2"}})
    assert [text[:6] for text in judge.violations] == ["rule 9", "rule 3"]


def test_a_claim_that_is_allocated_anew_gives_back_what_it_had() -> None:
    judge = DraJudge()
    judge.allocated_by_scheduler("one", "one", {"r0": ("toy0",)})
    judge.allocated("one", "r0", "1", ["toy0"], is_recorded=True)
    judge.reallocated("one", {"r0": ("toy1",)})
    judge.allocated("one", "r0", "2", ["toy1"], is_recorded=True)
    judge.pre_started("one", "r0", "2", ["toy1"])
    assert judge.lost == ["one/r0"]
    judge.prepared("one", [("pool", "toy1", ("id",))], {"id": {"TOY_TOY1": "toy1", "NUMBER_R0": "2"}})
    assert [text[:6] for text in judge.violations] == ["rule 3"]
    judge.released("one", "r0", "1", ["toy0"])
    assert judge.lost == []


def test_a_spec_gives_the_node_that_a_card_has_now() -> None:
    judge = DraJudge()
    judge.allocated_by_scheduler("one", "one", {"r0": ("toy0",)})
    judge.lives["one"].answer = (("pool", "toy0", ("id",)),)
    assert judge.outdated("one", {"id": ["/dev/toy0"]}, {"toy0": "/dev/toy0"}) == []
    assert judge.outdated("one", {"id": ["/dev/toy0"]}, {"toy0": "/dev/toy7"}) != []
    assert judge.outdated("one", None, {"toy0": "/dev/toy0"}) != []


def test_a_claim_is_not_answered_before_prepare_container() -> None:
    judge = DraJudge()
    judge.allocated_by_scheduler("one", "one", {"r0": ("toy0",)})
    answer = [("pool", "toy0", ("id",))]
    envs = {"id": {"TOY_TOY0": "toy0", "NUMBER_R0": "1"}}
    judge.allocated("one", "r0", "1", ["toy0"], is_recorded=True)
    judge.prepared("one", answer, envs)
    assert judge.violations.pop() == "rule 2: one was answered before prepare_container was called for ['r0']"
    judge.pre_started("one", "r0", "2", ["toy0"])
    assert [text[:6] for text in judge.violations] == ["rule 2", "rule 2"], "called for a prepared claim; other number"
