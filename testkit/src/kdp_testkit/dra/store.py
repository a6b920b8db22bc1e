"""The objects of a simulated API server, their versions, and what changed: no I/O.

One counter for all objects, as etcd's revision; what changed is kept for watches until it is compacted.
"""

from __future__ import annotations

import copy
import itertools
import re
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import attrs

from .status import ApiRefused, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Object = dict[str, Any]

KINDS: Final = (
    Kind("resource.k8s.io", "resourceslices", "ResourceSlice", namespaced=False, has_generation=True),
    Kind("resource.k8s.io", "resourceclaims", "ResourceClaim", namespaced=True),
    Kind("resource.k8s.io", "deviceclasses", "DeviceClass", namespaced=False, has_generation=True),
    Kind("", "nodes", "Node", namespaced=False),
    Kind("", "events", "Event", namespaced=True),
    Kind("", "pods", "Pod", namespaced=True, has_generation=True),
)
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_LABEL: Final = re.compile(r"(?P<not>!)?(?P<key>[\w./-]+)(==?(?P<value>[\w.-]*))?")
_SELECTABLE: Final = {
    "resourceslices": ("spec.nodeName", "spec.driver"),
    "pods": ("spec.nodeName", "status.phase"),
}


@attrs.frozen(kw_only=True)
class StoreChange:
    """One change: ``ADDED``, ``MODIFIED`` or ``DELETED``, with the object before and after."""

    version: int
    kind: Kind
    event: str
    item: Object
    before: Object | None


class Store:
    """All objects of a server. What is returned is a copy."""

    def __init__(self) -> None:
        self.version = 1
        self.compacted = 0
        self.changes: list[StoreChange] = []
        self._items: dict[tuple[str, str, str], Object] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return an object.

        Raises:
            ApiRefused: There is none (404).
        """
        try:
            return copy.deepcopy(self._items[kind.plural, namespace, name])
        except KeyError:
            raise kind.not_found(name) from None

    def all(
        self,
        kind: Kind,
        namespace: str,
        matches: Callable[[Mapping[str, Any]], bool],
        after: tuple[str, str] | None = None,
        most: int | None = None,
    ) -> list[Object]:
        """Return the objects of a kind, in the order of their namespaces and names.

        Args:
            kind: The kind.
            namespace: Where; "": everywhere.
            matches: Says whether an object is wanted.
            after: Namespace and name behind which to begin; None: at the first.
            most: How many; None: all.
        """
        keys = sorted(key for key in self._items if key[0] == kind.plural and namespace in ("", key[1]))
        wanted = (
            copy.deepcopy(item)
            for key in keys
            if (after is None or key[1:] > after) and matches(item := self._items[key])
        )
        return list(itertools.islice(wanted, most))

    def create(self, kind: Kind, namespace: str, item: Object, *, is_dry: bool = False) -> Object:
        """Store a new object, unless it is a dry run; its name may be generated.

        Raises:
            ApiRefused: The name is taken (409).
        """
        meta = item["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + "".join(secrets.choice(_ALPHABET) for _ in range(5))
        key = kind.plural, namespace, meta["name"]
        if key in self._items:
            raise kind.exists(meta["name"])
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if kind.namespaced:
            meta["namespace"] = namespace
        if kind.has_generation:
            meta["generation"] = 1
        item.setdefault("apiVersion", kind.api_version)
        item.setdefault("kind", kind.kind)
        return copy.deepcopy(item) if is_dry else self._write(kind, "ADDED", key, item, None)

    def _existing(self, kind: Kind, namespace: str, name: str) -> tuple[tuple[str, str, str], Object]:
        key = kind.plural, namespace, name
        old = self._items.get(key)
        if old is None:
            raise kind.not_found(name)
        return key, old

    def replace(self, kind: Kind, namespace: str, name: str, item: Object, *, is_dry: bool = False) -> Object:
        """Store another state of an object, unless it is a dry run; the same state is no write.

        Raises:
            ApiRefused: There is none (404), or it is not the one that was meant (409).
        """
        key, old = self._existing(kind, namespace, name)
        meta, before = item["metadata"], old["metadata"]
        if meta.get("uid") not in (None, "", before["uid"]):
            raise kind.conflict(
                name,
                f"StorageError: invalid object, Code: 4, Key: /registry/{kind.plural}/{name}, ResourceVersion: 0, "
                f"AdditionalErrorMsg: Precondition failed: UID in precondition: {meta['uid']}, "
                f"UID in object meta: {before['uid']}",
            )
        if meta.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise kind.modified(name)
        for kept in ("uid", "creationTimestamp", "generation", "resourceVersion", "name", "namespace"):
            if kept in before:
                meta[kept] = before[kept]
        if is_dry or item == old:
            return copy.deepcopy(item)
        if kind.has_generation and item.get("spec") != old.get("spec"):
            meta["generation"] = before["generation"] + 1
        return self._write(kind, "MODIFIED", key, item, old)

    def delete(self, kind: Kind, namespace: str, name: str, preconditions: Mapping[str, Any] | None = None) -> Object:
        """Delete an object and return it.

        Raises:
            ApiRefused: There is none (404), or it is not the one that was meant (409).
        """
        key, old = self._existing(kind, namespace, name)
        meta, wanted = old["metadata"], preconditions or {}
        if wanted.get("uid") not in (None, meta["uid"]):
            raise kind.other(
                name,
                f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({meta['uid']}). "
                f"The object might have been deleted and then recreated",
            )
        if wanted.get("resourceVersion") not in (None, meta["resourceVersion"]):
            raise kind.other(
                name,
                f"the ResourceVersion in the precondition ({wanted['resourceVersion']}) does not match the "
                f"ResourceVersion in record ({meta['resourceVersion']}). The object might have been modified",
            )
        del self._items[key]
        return self._note(kind, "DELETED", copy.deepcopy(old), old)

    def compact(self) -> None:
        """Forget all changes: watches from an older version than now are answered with 410."""
        self.compacted = self.version
        self.changes.clear()

    def since(self, version: int, kind: Kind) -> Iterator[StoreChange]:
        """Yield what changed after a version.

        Raises:
            ApiRefused: That is too long ago (410).
        """
        if version < self.compacted:
            raise ApiRefused(410, f"too old resource version: {version} ({self.compacted})")
        for change in self.changes:
            if change.version > version and change.kind is kind:
                yield change

    def _write(self, kind: Kind, event: str, key: tuple[str, str, str], item: Object, old: Object | None) -> Object:
        item = copy.deepcopy(item)
        self._items[key] = item
        return self._note(kind, event, item, old)

    def _note(self, kind: Kind, event: str, item: Object, old: Object | None) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(
            StoreChange(version=self.version, kind=kind, event=event, item=copy.deepcopy(item), before=old)
        )
        return copy.deepcopy(item)


def selected(kind: Kind, query: Mapping[str, str]) -> Callable[[Mapping[str, Any]], bool]:
    """Return what says whether an object is meant by a request's field selector and its label selector.

    Raises:
        ApiRefused: One of them names a field that cannot be selected, or is not understood (400).
    """
    is_meant = _by_fields(kind, query.get("fieldSelector", ""))
    has_labels = _by_labels(query.get("labelSelector", ""))
    return lambda item: is_meant(item) and has_labels(item)


def _by_labels(selector: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return what says whether an object has labels, as ``KEY``, ``!KEY``, and ``KEY=VALUE`` say."""
    wanted = [_LABEL.fullmatch(term) for term in filter(None, selector.split(","))]
    if None in wanted:
        raise ApiRefused(400, f"unable to parse requirement: the simulated API server does not take {selector!r}")

    def matches(item: Mapping[str, Any]) -> bool:
        labels: Object = item["metadata"].get("labels") or {}
        for term in filter(None, wanted):
            has = term["key"] in labels if term["value"] is None else labels.get(term["key"]) == term["value"]
            if has is (term["not"] is not None):
                return False
        return True

    return matches


def _by_fields(kind: Kind, selector: str) -> Callable[[Mapping[str, Any]], bool]:
    wanted: list[tuple[str, str, str, bool]] = []
    for term in filter(None, selector.split(",")):
        is_other = "!=" in term
        field, _, value = term.replace("!=", "=").replace("==", "=").partition("=")
        if field not in ("metadata.name", "metadata.namespace", *_SELECTABLE.get(kind.plural, ())):
            raise ApiRefused(400, f"field label not supported for {kind.api_version}, Kind={kind.kind}: {field}")
        part, name = field.split(".")
        wanted.append((part, name, value, is_other))

    def matches(item: Mapping[str, Any]) -> bool:
        for part, name, value, is_other in wanted:
            fields: Object = item.get(part) or {}
            if (fields.get(name, "") != value) is not is_other:
                return False
        return True

    return matches
