"""Patches of a Node: JSON patches, and server-side apply of its labels, with who owns which field.

Only what kdp uses: a JSON patch may test, add, replace, and remove, in lists only test and remove; an application has
labels. Of
fields, labels and the amounts in ``status`` have owners, in ``metadata.managedFields`` as a real server has them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from .status import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .status import Kind

Object = dict[str, Any]

_AMOUNTS = ("capacity", "allocatable")


def json_patched(item: Object, patch: Sequence[Mapping[str, Any]], kind: Kind) -> Object:
    """Return an object changed by a JSON patch (RFC 6902).

    Raises:
        ApiRefused: A test fails, or a path does not exist (422).
    """
    changed = copy.deepcopy(item)
    for operation in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = changed
        for part in parents:
            place = _child(place, part)
        if _is_list(place) and operation["op"] in ("test", "remove") and _child(place, last) is not None:
            if operation["op"] == "remove":
                del place[int(last)]
            elif place[int(last)] != operation["value"]:
                raise _unprocessable(kind, item, f"testing value {operation['path']} failed: test failed")
            continue
        if not isinstance(place, dict):
            raise _unprocessable(kind, item, f"{operation['op']} operation does not apply: doc is missing path")
        held = cast("Object", place)
        if operation["op"] == "test":
            if held.get(last) != operation["value"]:
                raise _unprocessable(kind, item, f"testing value {operation['path']} failed: test failed")
        elif operation["op"] == "remove":
            if last not in held:
                raise _unprocessable(kind, item, f"remove operation does not apply: doc is missing key: {last}")
            del held[last]
        else:
            held[last] = operation["value"]
    return changed


def _child(place: Any, name: str) -> Any:
    """Return a field of an object or an element of a list; None: there is none."""
    if isinstance(place, dict):
        return cast("Object", place).get(name)
    return place[int(name)] if _is_list(place) and name.isdigit() and int(name) < len(place) else None


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def with_owner(old: Object, new: Object, manager: str) -> Object:
    """Return an object with the amounts that changed owned by a manager."""
    entry = _entry(new, manager, "Update", "status")
    for part in _AMOUNTS:
        before, after = _amounts(old, part), _amounts(new, part)
        for name in {name for name in (*before, *after) if before.get(name) != after.get(name)}:
            for each in new["metadata"]["managedFields"]:
                _below(each, "f:status", f"f:{part}").pop(f"f:{name}", None)
            if name in after:
                _below(entry, "f:status", f"f:{part}")[f"f:{name}"] = {}
    return new


def applied(old: Object, given: Object, manager: str, kind: Kind, *, force: bool) -> Object:
    """Return a Node after a manager has applied labels.

    Raises:
        ApiRefused: Another manager owns one with another value (409), or the node is another one (409).
    """
    name = old["metadata"]["name"]
    if given["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
        raise kind.conflict(name, "Precondition failed: UID in precondition differs")
    new = copy.deepcopy(old)
    wanted: Mapping[str, str] = given["metadata"].get("labels") or {}
    labels: dict[str, str] = new["metadata"].setdefault("labels", {})
    mine = _entry(new, manager, "Apply", "")
    others = [each for each in new["metadata"]["managedFields"] if each is not mine]
    conflicts = [
        (each["manager"], label)
        for label, value in wanted.items()
        for each in others
        if f"f:{label}" in _below(each, "f:metadata", "f:labels") and labels.get(label) != value
    ]
    if conflicts and not force:
        raise ApiRefused(
            409,
            f"Apply failed with {len(conflicts)} conflicts: "
            + ", ".join(f'conflict with "{who}": .metadata.labels.{label}' for who, label in conflicts),
        )
    for each in others if force else ():
        for who, label in conflicts:
            if each["manager"] == who:
                _below(each, "f:metadata", "f:labels").pop(f"f:{label}", None)
    before = {each.removeprefix("f:") for each in _below(mine, "f:metadata", "f:labels")}
    shared = {label for each in others for label in _below(each, "f:metadata", "f:labels")}
    for label in before - {*wanted}:
        if f"f:{label}" not in shared:
            labels.pop(label, None)
    labels.update(wanted)
    mine["fieldsV1"] = {"f:metadata": {"f:labels": {f"f:{label}": {} for label in wanted}}}
    if not wanted:
        new["metadata"]["managedFields"].remove(mine)
    return new


def _amounts(item: Object, part: str) -> Mapping[str, str]:
    status: Object = item.get("status") or {}
    found: Mapping[str, str] = status.get(part) or {}
    return found


def _entry(item: Object, manager: str, operation: str, subresource: str) -> Object:
    entries: list[Object] = item["metadata"].setdefault("managedFields", [])
    for each in entries:
        if (each["manager"], each["operation"], each.get("subresource", "")) == (manager, operation, subresource):
            return each
    made: Object = {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": {}}
    if subresource:
        made["subresource"] = subresource
    entries.append(made)
    return made


def _below(entry: Object, *path: str) -> Object:
    found: Object = entry.setdefault("fieldsV1", {})
    for name in path:
        found = found.setdefault(name, {})
    return found


def _unprocessable(kind: Kind, item: Object, why: str) -> ApiRefused:
    return ApiRefused(
        422,
        f"the server rejected our request due to an error in our request: {kind.plural} "
        f"{item['metadata']['name']}: {why}",
        reason="Invalid",
    )
