"""What a stranger to the DRA room reads of a driver's claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kdp.errors import CheckpointError
from kdp.supervision.claimed import FORMAT, READABLE_BY, VERSION, claimed_devices, seal, unseal

GIVEN = {"nodes": ["/dev/card0"], "identity": "serial 0", "reach": {"device card-0": [], "/dev/card0": []}}


def body(**changes: Any) -> dict[str, Any]:
    use = {"request": "r", "pool": "p", "name": "card-0", "device_id": "card-0", "share_id": "", "is_admin": False}
    part = {"request": "r", "resource": "example.com/card", "uses": [use], "state": {}, "is_released": False}
    return {
        "claim": {"uid": "u-1", "name": "mine", "namespace": "default"},
        "parts": [part],
        "devices": [{"given": GIVEN}],
        "class_name": "acme.Cards",
        **changes,
    }


def save(folder: Path, data: bytes, *, driver: str = "card.example.com", name: str = "u-1.json") -> None:
    path = folder / driver / "claims" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_claims_device_with_its_holder(tmp_path: Path) -> None:
    save(tmp_path, seal(body()))
    [found] = claimed_devices(tmp_path)
    assert (found.claim, found.class_name) == ("u-1", "acme.Cards")
    assert str(found.holding) == "held as card-0 of card.example.com by claim default/mine"
    assert found.holding.given.reach == {"device card-0": (), "/dev/card0": ()}
    assert claimed_devices(tmp_path, without="card.example.com") == []


def test_ids_of_another_class_mean_nothing(tmp_path: Path) -> None:
    save(tmp_path, seal(body()))
    [found] = claimed_devices(tmp_path)
    assert found.seen_by({"acme.Cards"}) is found.holding
    foreign = found.seen_by({"other.Class"})
    assert foreign.is_foreign
    assert foreign.given.reach == {"/dev/card0": ()}


def released(value: dict[str, Any]) -> dict[str, Any]:
    value["parts"][0]["is_released"] = True
    return value


def for_admin(value: dict[str, Any]) -> dict[str, Any]:
    value["parts"][0]["uses"][0]["is_admin"] = True
    return value


@pytest.mark.parametrize("value", [released(body()), for_admin(body()), body(devices=[{}]), body(devices=[])])
def test_a_device_that_withholds_nothing(value: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, seal(value))
    assert claimed_devices(tmp_path) == []


DAMAGED = {
    "empty": b"",
    "one line": b"{}",
    "cut off": seal(body())[:-1],
    "no object": seal(["a", "list"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "no claim": seal({}),
    "parts are a number": seal(body(parts=7)),
    "given is a number": seal(body(devices=[{"given": 1.5}])),
    "a device is a list": seal(body(devices=[[1]])),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_costs_only_its_claim(data: bytes, tmp_path: Path) -> None:
    save(tmp_path, data, name="broken.json")
    save(tmp_path, seal(body()))
    (tmp_path / "card.example.com" / "claims" / ".draft.json").write_bytes(b"")
    (tmp_path / "a-file").write_bytes(b"")
    assert [each.claim for each in claimed_devices(tmp_path)] == ["u-1"]


def test_there_is_no_directory(tmp_path: Path) -> None:
    assert claimed_devices(tmp_path / "missing") == []


def test_a_file_of_a_later_version() -> None:
    head, _, payload = seal(body()).partition(b"\n")
    known = json.loads(head)
    assert (known["format"], known["version"], known["readable_by"]) == (FORMAT, VERSION, READABLE_BY)
    newer = json.dumps({**known, "version": 9}).encode() + b"\n" + payload
    assert unseal(newer) == body()
    unreadable = json.dumps({**known, "version": 9, "readable_by": 9}).encode() + b"\n" + payload
    with pytest.raises(CheckpointError, match="it has version 9, but this kdp reads version 1 only"):
        unseal(unreadable)
