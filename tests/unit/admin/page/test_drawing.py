"""The drawing of units, NUMA nodes, and links."""

from __future__ import annotations

import re

from kdp.admin.page.drawing import Link, Unit, drawing, units_of
from kdp.admin.page.markup import Element

from .samples import Parsed, device, document, resource, sick


def units(count: int, nodes: int = 2) -> list[Unit]:
    return [Unit(f"gpu-{i}", (i * nodes // count,) if nodes else (), "good", is_held=False) for i in range(count)]


def mesh(of: list[Unit]) -> list[Link]:
    return [Link(a.name, b.name, 1.0 + i % 3) for i, a in enumerate(of) for b in of[i + 1 :]]


def drawn(of: list[Unit], links: list[Link]) -> Element:
    found = drawing(of, links)
    assert found is not None
    return found


def classes(found: Element, name: str) -> int:
    pattern = rf"(^| ){name}( |$)"
    attributes = Parsed(found.as_html()).attributes
    return sum(key == "class" and re.search(pattern, value) is not None for _, key, value in attributes)


def test_linked_units_stand_on_a_ring_of_their_numa_nodes() -> None:
    found = drawn(units(8), mesh(units(8)))
    assert (classes(found, "unit"), classes(found, "band"), classes(found, "link")) == (8, 2, 28)
    assert found.attributes["aria-label"] == "8 units on 2 NUMA nodes; 28 links"
    assert "NUMA 0" in Parsed(found.as_html()).text


def test_units_without_links_stand_in_boxes() -> None:
    found = drawn(units(8), [])
    assert (classes(found, "tile"), classes(found, "box"), classes(found, "link")) == (8, 2, 0)


def test_a_unit_is_as_well_as_the_worst_of_its_devices() -> None:
    [served] = document(
        resource(
            device("mig-0", unit="gpu-0", numa_nodes=[0], held_by="default/p (main)"),
            sick("mig-1", unit="gpu-0", numa_nodes=[1]),
            device("gpu-1", state="suspect"),
            device("gpu-2"),
        )
    ).resources
    found = units_of(served.listed)
    assert [(each.name, each.numa, each.look, each.is_held) for each in found] == [
        ("gpu-0", (0, 1), "bad", True),
        ("gpu-1", (), "doubt", False),
        ("gpu-2", (), "good", False),
    ]
    assert found[0].told == "gpu-0: unhealthy, in use"
    assert "unhealthy: gpu-0" in drawn(list(found), []).attributes["aria-label"]
