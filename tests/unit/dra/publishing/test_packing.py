"""Where devices lie: nothing lost, nothing twice, always in order, never too much in a leaf, least change."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kdp.dra.publishing.packing import GAP, LAST, Item, Leaf, place

from ...strategies import effort


def items(names: Sequence[str | int]) -> list[Item]:
    return [Item((str(name),), (1,)) for name in names]


def lying(leaves: Sequence[Leaf]) -> list[str]:
    return [name for leaf in leaves for name in leaf.names]


def test_what_comes_goes_where_its_neighbours_are() -> None:
    before = (Leaf(16, ("a", "c")), Leaf(32, ("e",)))
    assert place(items("abce"), (3,), before) == (Leaf(16, ("a", "b", "c")), Leaf(32, ("e",)))
    assert place(items("acde"), (2,), before) == (Leaf(16, ("a", "c")), Leaf(32, ("d", "e")))
    assert place(items("0ace"), (3,), before) == (Leaf(16, ("0", "a", "c")), Leaf(32, ("e",)))


def test_a_full_leaf_in_the_middle_is_halved() -> None:
    before = (Leaf(16, ("a", "b", "c", "d")), Leaf(32, ("e", "f", "g", "h")))
    assert place(items("abxcdefgh"), (4,), before) == (
        Leaf(16, ("a", "b")),
        Leaf(24, ("x", "c", "d")),
        Leaf(32, ("e", "f", "g", "h")),
    )


def test_where_no_position_is_left_all_get_new_ones() -> None:
    before = (Leaf(16, ("a", "b")), Leaf(17, ("c", "d")))
    assert [leaf.position for leaf in place(items("axbcd"), (2,), before)] == [GAP, 2 * GAP, 3 * GAP]
    assert [leaf.position for leaf in place(items("abc"), (2,), [Leaf(LAST, ("a", "b"))])] == [GAP, 2 * GAP]


def test_families_stay_together() -> None:
    families = [Item(("a1", "a2"), (2, 1)), Item(("b1", "b2"), (2, 5)), Item(("c1",), (1, 5))]
    assert [leaf.names for leaf in place(families, (4, 8))] == [("a1", "a2", "b1", "b2"), ("c1",)]
    assert [leaf.names for leaf in place(families, (9, 4))] == [("a1", "a2"), ("b1", "b2"), ("c1",)]


@effort(300)
@given(
    st.lists(st.integers(0, 40), unique=True, max_size=40),
    st.lists(st.integers(0, 40), unique=True, max_size=40),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_whatever_was_before_all_lie_in_order_and_none_is_lost(
    first: list[int], second: list[int], room: int, other: int
) -> None:
    before = place(items(first), (other,))
    after = place(items(second), (room,), before)
    assert lying(after) == [str(n) for n in second]
    assert all(len(leaf.names) <= room for leaf in after)
    assert all(leaf.names for leaf in after) or len(after) == 1
    positions = [leaf.position for leaf in after]
    assert positions == sorted(set(positions))
    assert all(0 < position <= LAST for position in positions)
    assert place(items(second), (room,), after) == after
    assert len(after) <= 2 * max(1, -(-len(second) // room))


class Changes(RuleBasedStateMachine):
    """Devices come, go and change places; each single change touches as few leaves as it can."""

    ROOM = 4

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []
        self.leaves: tuple[Leaf, ...] = ()
        self.fresh = 0

    @initialize(count=st.integers(0, 20))
    def start(self, count: int) -> None:
        self.order = list(range(count))
        self.fresh = count
        self.leaves = place(items(self.order), (self.ROOM,))

    def step(self) -> int:
        """Place anew, and return how many leaves differ."""
        before = self.leaves
        self.leaves = place(items(self.order), (self.ROOM,), before)
        return len(set(before) ^ set(self.leaves))

    @rule(at=st.integers(0, 100))
    def comes(self, at: int) -> None:
        place_in_order = at % (len(self.order) + 1)
        self.order.insert(place_in_order, self.fresh)
        self.fresh += 1
        has_room = self.has_room(place_in_order)
        differ = self.step()
        if has_room:
            assert differ == 2  # the leaf before and after

    def has_room(self, at: int) -> bool:
        """Whether the leaf of the device before it, or else of the one after it, has room."""
        neighbour = self.order[at - 1] if at else self.order[1] if len(self.order) > 1 else None
        if neighbour is None:
            return True
        return any(str(neighbour) in leaf.names and len(leaf.names) < self.ROOM for leaf in self.leaves)

    @rule(at=st.integers(0, 100))
    def goes(self, at: int) -> None:
        if not self.order:
            return
        gone = str(self.order.pop(at % len(self.order)))
        alone = any(leaf.names == (gone,) for leaf in self.leaves)
        too_many = len(self.leaves) - alone > 2 * max(1, -(-len(self.order) // self.ROOM))
        differ = self.step()
        if not too_many and self.order:
            assert differ == (1 if alone else 2)

    @rule()
    def nothing_happens(self) -> None:
        assert self.step() == 0

    @rule(at=st.integers(0, 100), to=st.integers(0, 100))
    def moves(self, at: int, to: int) -> None:
        if self.order:
            self.order.insert(to % len(self.order), self.order.pop(at % len(self.order)))
            self.step()

    @invariant()
    def all_lie_in_order(self) -> None:
        assert lying(self.leaves) == [str(n) for n in self.order]
        assert all(len(leaf.names) <= self.ROOM for leaf in self.leaves)


TestChanges = Changes.TestCase
TestChanges.settings = effort(30, stateful_step_count=30)
