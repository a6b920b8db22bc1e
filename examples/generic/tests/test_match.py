from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdp_example_generic.config import Group, read
from kdp_example_generic.match import HOLD, Bundle, Pairing
from kdp_example_generic.pattern import Found


def _group(members: str) -> Group:
    return read(f"resources: [{{name: a.io/x, groups: [{{paths: [{members}]}}]}}]", "f").resources[0].groups[0]


def _found(*names: str) -> list[Found]:
    return [Found(path=f"/dev/{name}", label=name) for name in names]


def _keyed(**captures: dict[str, str]) -> list[Found]:
    return [Found(path=f"/dev/{name}", label=name, captures=keys, keys=keys) for name, keys in captures.items()]


def _names(bundles: list[Bundle]) -> dict[str, list[str]]:
    return {bundle.anchor.label: [found.label for _, found in bundle.members[1:]] for bundle in bundles}


TWO = "{path: /dev/a*}, {path: /dev/b*}"


def test_one_without_a_partner_is_there_and_says_what_is_missing() -> None:
    pairing = Pairing(_group(TWO))

    assert [b.missing for b in pairing.bundles([_found("a0"), []], 0)] == [("/dev/b* is not there",)]
    bundles = pairing.bundles([_found("a0", "a1"), _found("b0")], 0)
    assert [b.missing for b in bundles] == [(), ("no /dev/b* is left for it",)]


def test_a_partner_that_vanishes_moves_nobody_else() -> None:
    pairing = Pairing(_group(TWO))
    pairing.bundles([_found("a0", "a1"), _found("b0", "b1")], 0)

    bundles = pairing.bundles([_found("a0", "a1"), _found("b1")], 1)

    assert _names(bundles) == {"a0": [], "a1": ["b1"]}
    assert [bundle.missing for bundle in bundles] == [("/dev/b0 is gone",), ()]


def test_the_partner_of_a_vanished_anchor_is_kept_for_it_for_a_while() -> None:
    pairing = Pairing(_group(TWO))
    pairing.bundles([_found("a0"), _found("b0")], 0)

    assert _names(pairing.bundles([_found("a1"), _found("b0")], HOLD)) == {"a1": []}
    assert _names(pairing.bundles([_found("a1"), _found("b0")], HOLD + 1)) == {"a1": ["b0"]}


def test_a_shared_partner_goes_to_as_many_as_its_limit() -> None:
    pairing = Pairing(_group("{path: /dev/a*}, {path: /dev/b, limit: 2}"))

    bundles = pairing.bundles([_found("a0", "a1", "a2"), _found("b")], 0)

    assert _names(bundles) == {"a0": ["b"], "a1": ["b"], "a2": []}
    assert _names(pairing.bundles([_found("a2"), _found("b")], 1)) == {"a2": ["b"]}


def test_equal_captures_belong_together_whatever_the_order() -> None:
    pairing = Pairing(_group(r"{regex: '/dev/a(?P<n>\d)'}, {regex: '/dev/b(?P<n>\d)'}"))

    found = [_keyed(a0={"n": "0"}, a1={"n": "1"}), _keyed(b1={"n": "1"}, b2={"n": "2"})]

    assert _names(pairing.bundles(found, 0)) == {"a0": [], "a1": ["b1"]}


def test_a_capture_of_one_member_selects_the_next() -> None:
    pairing = Pairing(
        _group(r"{regex: '/dev/a(?P<n>\d)'}, {regex: '/dev/b(?P<n>\d)(?P<m>\d)'}, {regex: '/dev/c(?P<m>\d)'}")
    )

    found = [
        _keyed(a0={"n": "0"}, a1={"n": "1"}, a2={"n": "2"}),
        _keyed(b07={"n": "0", "m": "7"}, b15={"n": "1", "m": "5"}),
        _keyed(c5={"m": "5"}, c7={"m": "7"}),
    ]

    assert _names(pairing.bundles(found, 0)) == {"a0": ["b07", "c7"], "a1": ["b15", "c5"], "a2": []}


def test_an_optional_member_may_be_missing_and_all_means_all() -> None:
    pairing = Pairing(_group("{path: /dev/a*}, {path: /dev/b*, optional: true}, {path: /dev/c*, all: true}"))

    (bundle,) = pairing.bundles([_found("a0"), [], _found("c0", "c1")], 0)

    assert [found.label for _, found in bundle.members] == ["a0", "c0", "c1"]
    assert bundle.missing == ()
    (bundle,) = pairing.bundles([_found("a0"), [], []], 0)
    assert bundle.missing == ("/dev/c* is not there",)


class Pairs(RuleBasedStateMachine):
    """Nodes come and go; the invariants of the module's head hold all the time."""

    LIMIT = 1

    def __init__(self) -> None:
        super().__init__()
        self.pairing = Pairing(_group(f"{{path: /dev/a*}}, {{path: /dev/b*, optional: true, limit: {self.LIMIT}}}"))
        self.anchors: set[int] = set()
        self.partners: set[int] = set()
        self.now = 0.0
        self.before: dict[str, str] = {}
        self.devices: list[Bundle] = []

    @rule(number=st.integers(0, 4))
    def anchor(self, number: int) -> None:
        self.anchors ^= {number}
        self._discover()

    @rule(number=st.integers(0, 4))
    def partner(self, number: int) -> None:
        self.partners ^= {number}
        self._discover()

    @rule(seconds=st.sampled_from([1.0, HOLD, 2 * HOLD]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._discover()

    def _discover(self) -> None:
        found = [
            _found(*(f"a{i}" for i in sorted(self.anchors))),
            _found(*(f"b{i}" for i in sorted(self.partners))),
        ]
        previous = {b.anchor.label: b.members[1][1].label for b in self.devices if len(b.members) > 1}
        self.devices = self.pairing.bundles(found, self.now)
        pairs = _names(self.devices)
        for anchor, partner in previous.items():
            if anchor in pairs and int(partner[1:]) in self.partners:
                assert pairs[anchor] == [partner], "a pair stays a pair"

    @invariant()
    def one_device_for_each_anchor(self) -> None:
        assert [bundle.anchor.label for bundle in self.devices] == [f"a{i}" for i in sorted(self.anchors)]

    @invariant()
    def no_node_is_in_more_devices_than_its_limit(self) -> None:
        uses = Counter(found.path for bundle in self.devices for _, found in bundle.members[1:])
        assert all(count <= self.LIMIT for count in uses.values())

    @invariant()
    def nothing_that_is_gone_is_handed_out(self) -> None:
        assert {found.label for b in self.devices for _, found in b.members[1:]} <= {f"b{i}" for i in self.partners}


class SharedPairs(Pairs):
    """The same with nodes that two devices may have."""

    LIMIT = 2


TestPairs = Pairs.TestCase
TestSharedPairs = SharedPairs.TestCase
