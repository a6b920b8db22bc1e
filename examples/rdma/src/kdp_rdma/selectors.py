"""What a selector means. Within a field one value must fit, and every field that is not empty must."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .config import Functions, Selectors, VfSelector
    from .functions import VirtualFunction
    from .hca import Hca


ALONE = "is_alone"
"""What leaves out a function that is alone; no field of a selector."""


def hca_fits(selectors: Selectors, hca: Hca) -> bool:
    """Return whether an adapter is meant."""
    facts = hca.facts
    return (
        _one_of(selectors.vendors, [facts.vendor])
        and _one_of(selectors.device_ids, [facts.device])
        and _one_of(selectors.drivers, [facts.driver])
        and _one_of(selectors.if_names, hca.interfaces)
        and _one_of(selectors.link_types, hca.link_types)
    )


def vf_misfits(selector: VfSelector, function: VirtualFunction, *, is_rdma: bool) -> list[str]:
    """Return the fields of a selector that leave a virtual function out; none: it is meant.

    Args:
        selector: The selector.
        function: The function.
        is_rdma: Whether it has an RDMA adapter, be it visible here or in a container.
    """
    vdpa = "" if function.vdpa is None else function.vdpa.kind
    fits = {
        "aux_types": function.aux_type in selector.aux_types if selector.aux_types else not function.aux_type,
        "vdpa_type": not selector.vdpa_type or vdpa == selector.vdpa_type,
        "vendors": _one_of(selector.vendors, [function.vendor]),
        "devices": _one_of(selector.devices, [function.device]),
        "drivers": _one_of(selector.drivers, [function.driver]),
        "pci_addresses": _one_of(selector.pci_addresses, [function.address]),
        "acpi_indexes": _one_of(selector.acpi_indexes, [function.acpi_index]),
        "pf_names": _of_parent(selector.pf_names, function.parent_interfaces, function.number),
        "root_devices": _of_parent(selector.root_devices, [function.parent], function.number),
        "link_types": _one_of(selector.link_types, [function.link_type]),
        "p_keys": not selector.p_keys or function.p_key in selector.p_keys,
        "is_rdma": is_rdma or not selector.is_rdma,
        # A plain card of the node looks the same as a function that a guest was given. So it is meant only if the
        # kernel does not use it, or if the admin names it.
        ALONE: not function.is_alone
        or function.is_for_programs
        or bool(selector.pci_addresses or selector.acpi_indexes),
    }
    return [name for name, does in fits.items() if not does]


def _one_of(wanted: Collection[str], there: Iterable[str]) -> bool:
    return not wanted or not {text.lower() for text in wanted}.isdisjoint(text.lower() for text in there)


def _of_parent(wanted: Collection[Functions], names: Iterable[str], number: int | None) -> bool:
    there = {name.lower() for name in names}
    return not wanted or any(
        held.parent.lower() in there and (held.numbers is None or number in held.numbers) for held in wanted
    )
