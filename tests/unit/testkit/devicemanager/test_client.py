"""The client records: one slot for each resource, or a list by path (contract section 2.5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from kdp_testkit.devicemanager.client import Client, ClientTable


def record(resource: str, socket_path: str) -> Client:
    return cast("Client", SimpleNamespace(resource=resource, socket_path=socket_path))


def test_one_slot_holds_the_newest_and_is_found_by_anybodys_path() -> None:
    table = ClientTable(one_per_resource=True)
    old, new = record("r", "/old"), record("r", "/new")
    table.add(old)
    table.add(new)
    assert table.all() == [new]
    assert table.find("r", "/old") is new, "the takeover bug"
    table.drop("r", "/whatever")
    assert table.find("r", "/new") is None, "a failed registration empties the slot of a living client"


def test_a_list_is_found_by_path_and_dropped_by_path() -> None:
    table = ClientTable(one_per_resource=False)
    first, second, twin, other = record("r", "/1"), record("r", "/2"), record("r", "/1"), record("s", "/1")
    for each in (first, second, twin, other):
        table.add(each)
    assert table.find("r", "/2") is second
    assert table.find("r", "/1") is first
    assert table.find("r", "/3") is None
    table.drop("r", "/1")
    assert table.all() == [second, other], "every record of the path goes, also the living one: a poisoned path"
    table.drop("r", "/2")
    table.drop("r", "/2")
    assert table.all() == [other]
