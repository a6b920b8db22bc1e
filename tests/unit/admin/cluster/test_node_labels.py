from __future__ import annotations

from typing import Any

from kdp.admin.cluster.node_labels import Conflict, application_of, change_of

MINE = "kdp-label-example.com/gpu"


def entry(manager: str, *labels: str, operation: str = "Apply") -> dict[str, Any]:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {".": {}, **{f"f:{label}": {} for label in labels}}}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def node(labels: dict[str, str], *managed: dict[str, Any]) -> Any:
    return {"metadata": {"name": "node-0", "uid": "u-0", "labels": labels, "managedFields": list(managed)}}


def test_new_labels_are_added_and_those_of_others_stay() -> None:
    change = change_of(node({"other": "1"}, entry("kubelet", "other", operation="Update")), {"a/x": "1"}, MINE)
    assert (change.added, dict(change.changed), change.removed, change.conflicts) == (("a/x",), {}, (), ())


def test_labels_that_are_no_longer_wanted_are_removed() -> None:
    change = change_of(node({"a/x": "1", "a/y": "2"}, entry(MINE, "a/x", "a/y")), {"a/x": "1"}, MINE)
    assert (change.added, dict(change.changed), change.removed) == ((), {}, ("a/y",))
    assert not change.is_empty


def test_a_label_that_another_manager_applies_too_stays() -> None:
    shared = node({"a/x": "1"}, entry(MINE, "a/x"), entry("nfd-master", "a/x", operation="Update"))
    assert change_of(shared, {}, MINE).is_empty


def test_another_value_of_another_manager_is_a_conflict_that_names_it() -> None:
    held = node({"a/x": "1"}, entry("kubectl-label", "a/x", operation="Update"))
    assert change_of(held, {"a/x": "2"}, MINE).conflicts == (Conflict("a/x", "1", ("kubectl-label",)),)
    assert change_of(held, {"a/x": "1"}, MINE).conflicts == ()


def test_the_application_names_the_node_that_was_read() -> None:
    applied = application_of(node({}), {"a/x": "1"})
    assert applied["metadata"] == {"name": "node-0", "uid": "u-0", "labels": {"a/x": "1"}}
    assert "labels" not in application_of(node({}), {})["metadata"]
