from __future__ import annotations

import re
from typing import Any

import pytest

import kdp
from kdp.admin.cluster.extended_resources import MANAGER, ResourceChange, advertising, parse_assignment, withdrawing
from kdp_testkit.dra.rules import json_patched
from kdp_testkit.dra.store import KINDS

NAME = "example.com/dongle"
NODES = next(kind for kind in KINDS if kind.plural == "nodes")


def node(number: str | None = None, *, writer: str | None = None, status: dict[str, Any] | None = None) -> Any:
    amounts = {} if number is None else {NAME: number}
    managed = [] if writer is None else [{"manager": writer, "operation": "Update", "fieldsV1": _fields()}]
    return {
        "metadata": {"name": "node-0", "uid": "u-0", "managedFields": managed},
        "status": {"capacity": {**amounts, "cpu": "8"}, "allocatable": {**amounts}} if status is None else status,
    }


def _fields() -> dict[str, Any]:
    return {"f:status": {"f:capacity": {f"f:{NAME}": {}}}}


def after(subject: Any, change: ResourceChange) -> tuple[str | None, str | None]:
    """Return the numbers that the node has when the patch was done: capacity, allocatable."""
    status = json_patched(subject, change.patch, NODES)["status"]
    return status["capacity"].get(NAME), status["allocatable"].get(NAME)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dongle=4", "resource name 'dongle': must be a domain, one slash and a name"),
        ("example.com/dongle", "must be NAME=NUMBER"),
        ("example.com/dongle=0", "use 'kdp node withdraw'"),
        ("example.com/dongle=1.5", "a whole one from 1 to"),
        ("example.com/dongle=" + "9" * 5000, "a whole one from 1 to"),
        ("kubernetes.io/dongle=1", "the domain kubernetes.io is reserved"),
    ],
)
def test_a_wrong_assignment_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(kdp.ConfigurationError, match=re.escape(words)):
        parse_assignment(text)


@pytest.mark.parametrize("status", [None, {}, {"capacity": {}}])
def test_a_node_without_the_resource_gets_it_without_a_question(status: dict[str, Any] | None) -> None:
    subject = node(status=status)
    change = advertising(subject, NAME, 4, served_by=None)
    assert (change.before, change.after, change.question) == (None, "4", None)
    assert after(subject, change) == ("4", "4")
    assert "/status/capacity/example.com~1dongle" in [operation["path"] for operation in change.patch]


def test_what_kdp_wrote_is_changed_and_withdrawn_without_a_question() -> None:
    subject = node("4", writer=MANAGER)
    change = advertising(subject, NAME, 5, served_by=None)
    assert (change.question, after(subject, change)) == (None, ("5", "5"))
    assert advertising(subject, NAME, 4, served_by=None).patch == ()
    gone = withdrawing(subject, NAME, served_by=None)
    assert (gone.question, after(subject, gone)) == (None, (None, None))


def test_a_resource_of_a_plugin_is_refused() -> None:
    subject, words = node("8", writer="kubelet"), "node node-0 has 8 of it from its kubelet, so a device plugin"
    with pytest.raises(kdp.ConfigurationError, match=words):
        advertising(subject, NAME, 4, served_by=None)
    with pytest.raises(kdp.ConfigurationError, match=words):
        withdrawing(subject, NAME, served_by=None)


@pytest.mark.parametrize("number", [None, "0"])
def test_a_resource_of_a_running_plugin_without_devices_is_refused(number: str | None) -> None:
    subject = node(number, writer=None if number is None else "kubelet")
    with pytest.raises(kdp.ConfigurationError, match="the plugin of process 7 serves it on this node"):
        withdrawing(subject, NAME, served_by="the plugin of process 7")
    with pytest.raises(kdp.ConfigurationError, match="the kubelet would replace your number"):
        advertising(subject, NAME, 4, served_by="the plugin of process 7")


def test_the_zero_of_a_plugin_that_vanished_is_removed_after_a_question() -> None:
    subject = node("0", writer="kubelet")
    change = withdrawing(subject, NAME, served_by=None)
    assert change.question is not None
    assert "from a device plugin that has vanished" in change.question
    assert after(subject, change) == (None, None)
    change = advertising(subject, NAME, 4, served_by=None)
    assert change.question is not None
    assert after(subject, change) == ("4", "4")


@pytest.mark.parametrize(("writer", "words"), [(None, "nobody knows who wrote it"), ("nfd-master", "nfd-master wrote")])
def test_what_somebody_else_wrote_is_asked_about(writer: str | None, words: str) -> None:
    subject = node("3", writer=writer)
    for change in (advertising(subject, NAME, 4, served_by=None), withdrawing(subject, NAME, served_by=None)):
        assert words in (change.question or "")


def test_the_patch_fails_if_the_number_or_the_node_changed_meanwhile() -> None:
    change = withdrawing(node("0", writer="kubelet"), NAME, served_by=None)
    with pytest.raises(Exception, match="test failed"):
        json_patched(node("8", writer="kubelet"), change.patch, NODES)
    other = node("0", writer="kubelet")
    other["metadata"]["uid"] = "u-1"
    with pytest.raises(Exception, match="testing value /metadata/uid failed"):
        json_patched(other, change.patch, NODES)
