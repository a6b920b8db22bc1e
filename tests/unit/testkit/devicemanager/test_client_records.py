"""The client records: one slot for each resource, or a list by path (contract section 2.5)."""

from __future__ import annotations

import attrs

from kdp_testkit.devicemanager.client_records import ClientTable


@attrs.frozen(eq=False)
class Record:
    resource: str
    socket_path: str


def test_one_slot_holds_the_newest_and_is_found_by_anybodys_path() -> None:
    table: ClientTable[Record] = ClientTable(one_per_resource=True)
    old, new = Record("r", "/old"), Record("r", "/new")
    table.add(old)
    table.add(new)
    assert table.all() == [new]
    assert table.find("r", "/old") is new, "the takeover bug"
    table.drop("r", "/whatever")
    assert table.find("r", "/new") is None, "a failed registration empties the slot of a living client"


def test_a_list_is_found_by_path_and_dropped_by_path() -> None:
    table: ClientTable[Record] = ClientTable(one_per_resource=False)
    first, second, twin, other = Record("r", "/1"), Record("r", "/2"), Record("r", "/1"), Record("s", "/1")
    for record in (first, second, twin, other):
        table.add(record)
    assert table.find("r", "/2") is second
    assert table.find("r", "/1") is first
    assert table.find("r", "/3") is None
    table.drop("r", "/1")
    assert table.all() == [second, other], "every record of the path goes, also the living one: a poisoned path"
    table.drop("r", "/2")
    table.drop("r", "/2")
    assert table.all() == [other]
