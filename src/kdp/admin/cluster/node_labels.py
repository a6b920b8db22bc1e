"""The labels of a Node object by server-side apply: which are ours, what changes, and who owns what is in the way.

One manager applies all labels of one backend. A label that it no longer applies vanishes; labels of others stay. The
API server refuses a label that another manager owns with another value. Without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...cluster.nodes import items, owned, owners, part

if TYPE_CHECKING:
    from ...cluster.api import Object

_MANAGERS: Final = "kdp-label-"
"""How the names of the managers begin."""

_LONGEST: Final = 128
"""Characters of a manager's name."""


def manager_of(name: str) -> str:
    """Return the name under which the labels of a backend are applied: of its resource, or of its class."""
    printable = "".join(char if char.isascii() and char.isprintable() else "-" for char in name)
    return f"{_MANAGERS}{printable}"[:_LONGEST]


def managers_of(node: Object) -> list[str]:
    """Return the names under which kdp has applied labels of a node, of all backends."""
    names: list[str] = [
        each.get("manager", "") for each in items(node, "metadata", "managedFields") if each.get("operation") == "Apply"
    ]
    return sorted({name for name in names if name.startswith(_MANAGERS)})


@final
@attrs.frozen
class Conflict:
    """A label that another manager owns with another value."""

    label: str
    value: str
    owners: tuple[str, ...]


@final
@attrs.frozen(kw_only=True)
class LabelChange:
    """What an application of labels does.

    Attributes:
        labels: All labels that are applied.
        added: Labels that the node does not have.
        changed: Labels with another value, by their previous value.
        removed: Labels that were applied before and are not any more.
        conflicts: Labels that are in the way, which only ``force`` takes over.
    """

    labels: Mapping[str, str]
    added: tuple[str, ...]
    changed: Mapping[str, str]
    removed: tuple[str, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the node's labels stay what they are."""
        return not (self.added or self.changed or self.removed)


def change_of(node: Object, labels: Mapping[str, str], manager: str) -> LabelChange:
    """Return what the application of these labels does to a node."""
    held: Mapping[str, str] = part(node, "metadata", "labels")
    before = set(owned(node, manager, "metadata", "labels"))
    changed = {name: held[name] for name, value in labels.items() if held.get(name, value) != value}
    conflicts = [
        Conflict(name, value, tuple(sorted(others)))
        for name, value in changed.items()
        if (others := {*owners(node, "metadata", "labels", name)} - {manager})
    ]
    # One that another manager owns, too, stays.
    removed = [
        name
        for name in sorted(before - {*labels})
        if name in held and not ({*owners(node, "metadata", "labels", name)} - {manager})
    ]
    return LabelChange(
        labels=dict(labels),
        added=tuple(sorted(name for name in labels if name not in held)),
        changed=changed,
        removed=tuple(removed),
        conflicts=tuple(conflicts),
    )


def application_of(node: Object, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the object to apply. It names the node's UID, so that no node is made if it is gone."""
    metadata: dict[str, Any] = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
