"""Lives of a node whose cards change their names: no device is for two containers, and none is withheld for ever."""

from __future__ import annotations

import time

import pytest

from kdp.supervision import holdings as real

from ..mutants import Mutant, each_mutant
from ..strategies import EFFORT, scaled
from .holdings_world import OPERATIONS, BrokenError, lives

LIVES = 2_000
"""All of them in `make test-slow`; a night plays ten times as many (``KDP_TEST_EFFORT=10``)."""

LONGEST = 25
"""Operations of a life."""

MUTANTS = [
    Mutant(1, "another resource is free", "if name != holding.name)", "if name[1] != holding.name[1])"),
    Mutant(1, "a free device is never withheld", "withheld.setdefault(name, holding)", "pass"),
    Mutant(1, "the kernel's numbers do not count", "yield from nodes.get(node.host_path, ())", "yield from ()"),
    Mutant(2, "control nodes are exclusive", "and self._is_control(thing, device.unit, own):", "and False:"),
    Mutant(3, "a shared thing is everybody's", "if is_group or not left:", "if False:"),
    Mutant(3, "a pool cannot grow", "if is_group or not left:", "if True:"),
    Mutant(3, "a group is shared", "if is_group or not left:", "if not left:"),
    Mutant(4, "a second card waits", "if not present.are_apart(own, name))", "if True)"),
    Mutant(4, "each newcomer is a second card", "if not present.are_apart(own, name))", "if False)"),
    Mutant(4, "a group is a second card's, too", "own not in having or is_group:", "own not in having:"),
    Mutant(5, "other hardware under the old id is not seen", "        if is_lost:", "        if False:"),
    Mutant(5, "the parts of another card share", "not (holding.given.shares_identity and is_other)", "True"),
    Mutant(6, "numbers outlive a reboot", "if is_this_boot or not thing.startswith(_OF_THIS_BOOT)", "if True"),
    Mutant(6, "a path counts with its old number", "reach.setdefault(thing, reach[path])", "pass"),
    Mutant(9, "no old name answers", "return all(thing in paths", "return not all(thing in paths"),
    Mutant(9, "other hardware answers", "if holding.given.identity and device.identity:", "if False:"),
    Mutant(9, "only identities are compared", "return base_id(device.id) == base_id(holding.name[1])", "return False"),
]  # fmt: skip


@pytest.mark.drawn
def test_one_card_is_never_for_two_containers() -> None:
    first = 0 if EFFORT <= 1 else int(time.time())
    count = scaled(LIVES)
    counts = lives(real, count, LONGEST, first=first)
    print(f"{count} lives of {LONGEST} operations from seed {first}: {dict(counts)}")
    assert counts.keys() == OPERATIONS.keys()


@each_mutant(MUTANTS)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    with pytest.raises(BrokenError):
        lives(mutant.load("kdp.supervision.holdings"), LIVES, LONGEST)
