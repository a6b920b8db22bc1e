"""Values are frozen, and still copied, pickled, and evolved."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest

import kdp
from kdp.model.frozen import FrozenDict

DEVICE = kdp.Device(
    id="a",
    attributes={"model": "A1", "firmware": kdp.Version("1.2.3")},
    capacity={"memory": kdp.Quantity("80Gi")},
    edits=kdp.ContainerEdits(
        env={"A": "1"}, annotations={"example.com/a": "1"}, device_nodes=kdp.DeviceNode(host_path="/dev/a")
    ),
    shareable={"memory": kdp.RequestPolicy(default=1)},
    consumes={"card": {"slots": 1}},
)


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, sent])
def test_a_device_could_not_be_copied_or_sent_to_another_process(copied: Any) -> None:
    other = copied(DEVICE)
    assert other == DEVICE
    assert hash(other) == hash(DEVICE)
    with pytest.raises(TypeError):
        other.edits.env["B"] = "2"


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.__setitem__("A", "2"),
        lambda held: held.__delitem__("A"),
        lambda held: held.__ior__({"B": "2"}),
        lambda held: held.clear(),
        lambda held: held.pop("A"),
        lambda held: held.popitem(),
        lambda held: held.setdefault("B", "2"),
        lambda held: held.update(B="2"),
    ],
)
def test_a_change_names_what_makes_a_changed_copy(change: Any) -> None:
    held = FrozenDict({"A": "1"})
    with pytest.raises(TypeError, match=r"edits\.adding\(env="):
        change(held)
    assert held == {"A": "1"}


def test_a_copy_with_another_name_kept_the_default_that_was_made_of_the_old_one() -> None:
    assert attrs.evolve(kdp.Device(id="a"), id="b") == kdp.Device(id="b")
    assert attrs.evolve(kdp.Device(id="a"), id="b").unit == "b"
    assert attrs.evolve(kdp.Device(id="a", unit="card"), id="b").unit == "card"
    assert kdp.Device(id="a", unit="a") == kdp.Device(id="a")
    assert attrs.evolve(kdp.DeviceNode(host_path="/dev/a"), host_path="/dev/b").container_path == "/dev/b"
    assert attrs.evolve(kdp.Mount(host_path="/a", container_path="/c"), host_path="/b").container_path == "/c"
    assert "unit='card'" in repr(kdp.Device(id="a", unit="card"))
