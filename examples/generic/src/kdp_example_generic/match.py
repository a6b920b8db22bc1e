"""Which nodes belong together in one device, and that they stay together.

The anchor of a group (its first member that is neither shared nor optional) makes the devices: each node found for it
is one. Every other member gives one of its nodes to each of them:

1. Members whose regular expressions name a capture alike belong together where its value is equal, each with the anchor
   and the members before it. That holds for ever.
2. Otherwise the first goes to the first (2 comes before 10), and so on.

Rule 1: a node is in at most ``limit`` devices, also while nodes come and go. So a pair stays a pair as long as its
partner is there; a device that loses its partner takes a free one if there is one, and is incomplete otherwise.
Counting anew each time would move every later pair by one, and give a node to a new container while an old one uses it.
Rule 2: the partner of a vanished anchor is kept for it for `HOLD` seconds, because a pod may still use it.

No I/O and no clock of its own: the caller says what was found and what time it is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from .config import Group, PathMember, UsbMember
from .pattern import Found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOLD = 600.0
"""Seconds; as long as kdp itself remembers a vanished device where it cannot ask the kubelet."""


@attrs.frozen(kw_only=True)
class Bundle:
    """What one device consists of.

    Attributes:
        anchor: What made it.
        members: All nodes, in the file's order, each with the member that it is for.
        missing: Why it is not complete; empty: it is.
    """

    anchor: Found
    members: tuple[tuple[PathMember | UsbMember, Found], ...]
    missing: tuple[str, ...]


class Pairing:
    """The pairs of one group. Not safe for several threads."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._partners: list[dict[str, str]] = [{} for _ in group.members]  # for each member: anchor -> partner
        self._lost: list[dict[str, str]] = [{} for _ in group.members]
        self._seen: dict[str, float] = {}
        known = group.members[group.anchor].keys
        self._joint: list[frozenset[str]] = []  # for each member: the captures that it has in common with those before
        for member in group.members:
            self._joint.append(member.keys & known)
            known |= member.keys

    def bundles(self, found: Sequence[Sequence[Found]], now: float) -> list[Bundle]:
        """Return the devices that there are now.

        Args:
            found: What was found for each member, in order.
            now: A monotonic time in seconds.
        """
        anchors = [anchor for anchor in self._anchors(found) if not self._is_excluded(anchor, found)]
        self._seen |= {anchor.path: now for anchor in anchors}
        self._seen = {path: seen for path, seen in self._seen.items() if now - seen <= HOLD}
        keys = {anchor.path: dict(anchor.keys) for anchor in anchors}
        chosen: list[dict[str, list[Found]]] = []
        for i, (member, items) in enumerate(zip(self.group.members, found, strict=True)):
            if i == self.group.anchor:
                chosen.append({anchor.path: [item for item in items if item.path == anchor.path] for anchor in anchors})
            elif member.absent:
                chosen.append({path: [] for path in keys})
            elif member.every:
                joint = self._joint[i]
                chosen.append(
                    {
                        path: [item for item in items if _belong_together(known, item, joint)]
                        for path, known in keys.items()
                    }
                )
            else:
                candidates = {item.path: item for item in items}
                self._pair(i, anchors, candidates, keys)
                partners = self._partners[i]
                chosen.append({path: [candidates[partners[path]]] if path in partners else [] for path in keys})
                for path, known in keys.items():
                    for item in chosen[i][path]:
                        known |= item.keys
        return [self._bundle(anchor, chosen, found) for anchor in anchors]

    def _anchors(self, found: Sequence[Sequence[Found]]) -> Sequence[Found]:
        """Return what makes devices. Where all members are optional, the first does, be it there or not.

        So the device keeps its id whichever of them come and go.
        """
        first = self.group.members[0]
        if not self.group.is_any or not isinstance(first, PathMember):
            return found[self.group.anchor]
        labels = (member.pattern.label for member in self.group.members if isinstance(member, PathMember))
        return [Found(path=first.pattern.plain, label="+".join(labels))] if any(found) else []

    def _is_excluded(self, anchor: Found, found: Sequence[Sequence[Found]]) -> bool:
        """Return whether something is there that must be absent for a device of this anchor."""
        return any(
            member.absent and _belong_together(anchor.keys, item, member.keys)
            for member, items in zip(self.group.members, found, strict=True)
            for item in items
        )

    def _pair(
        self,
        index: int,
        anchors: Sequence[Found],
        candidates: Mapping[str, Found],
        keys: Mapping[str, Mapping[str, str]],
    ) -> None:
        member, partners, lost = self.group.members[index], self._partners[index], self._lost[index]
        present = {anchor.path for anchor in anchors}
        for anchor, partner in list(partners.items()):
            if partner not in candidates:
                lost[anchor] = partners.pop(anchor)
            elif anchor not in present and (member.limit > 1 or anchor not in self._seen):
                del partners[anchor]
        for anchor in lost.keys() - self._seen.keys():
            del lost[anchor]
        uses = Counter(partners.values())
        for item in anchors:
            if item.path in partners:
                continue
            for path, candidate in candidates.items():
                if uses[path] < member.limit and _belong_together(keys[item.path], candidate, self._joint[index]):
                    partners[item.path] = path
                    lost.pop(item.path, None)
                    uses[path] += 1
                    break

    def _bundle(
        self, anchor: Found, chosen: Sequence[Mapping[str, Sequence[Found]]], found: Sequence[Sequence[Found]]
    ) -> Bundle:
        members: list[tuple[PathMember | UsbMember, Found]] = []
        missing: list[str] = []
        for i, member in enumerate(self.group.members):
            items = chosen[i][anchor.path]
            members += [(member, item) for item in items]
            if not items and not member.optional and not member.absent:
                missing.append(_why(member, anchor.path, self._lost[i], found[i]))
        if self.group.is_any:  # what the placeholders and attributes name is there
            anchor = attrs.evolve(anchor, path=members[0][1].path)
        return Bundle(anchor=anchor, members=tuple(members), missing=tuple(missing))


def _belong_together(known: Mapping[str, str], item: Found, joint: frozenset[str]) -> bool:
    """Return whether the captures in common are equal; one that a missing member should have told is not."""
    return all(known.get(name) == item.keys[name] for name in joint)


def _why(member: PathMember | UsbMember, anchor: str, lost: Mapping[str, str], candidates: Sequence[Found]) -> str:
    if anchor in lost:
        return f"{lost[anchor]} is gone"
    if not candidates:
        return f"{member.label} is not there"
    return f"no {member.label} is left for it"
