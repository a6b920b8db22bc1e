"""The devices of the modes ``pool`` and ``hca``: slots of adapters that containers share.

``pool``: a container that has a slot gets all adapters of the pool. ``hca``: it gets the one adapter of the slot.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import kdp
import kdp.hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import PoolConfig
    from .hca import Hca

_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]+)?) Gb/sec")

_LONGEST_PREFIX = 57
"""Of an id: with ``-`` and the number of one of 10,000 containers it has 63 characters at most."""


def pool_devices(
    pool: PoolConfig,
    hcas: Sequence[Hca],
    rdma_cm: str | None,
    *,
    variables: Sequence[str],
    all_ports: bool,
    refused: str | None,
    left_out: list[str],
) -> list[kdp.Device]:
    """Return the slots of a pool; none, if it has no adapter.

    The slots are healthy while one adapter is; a container gets the nodes of those that can be opened. Each slot's
    handle is the names of the pool's adapters.

    Args:
        pool: The pool.
        hcas: Its adapters.
        rdma_cm: The node that all adapters share; None: there is none.
        variables: Those that name a container's adapters.
        all_ports: Whether each port of an adapter must be active, or one.
        refused: Why no container could open any of them; None: it could.
        left_out: Is given a sentence for each adapter that does not do its part.
    """
    hcas = [hca for hca in hcas if _can_be_named(hca, variables, left_out)]
    if not hcas:
        return []
    faults = {hca.name: hca.unhealthy_because(all_ports=all_ports) for hca in hcas}
    reasons = [fault for fault in faults.values() if fault is not None]
    reason = refused or ("; ".join(reasons) if len(reasons) == len(faults) else None)
    if reason is None:
        left_out += [f"{pool.resource}: {fault}" for fault in reasons]
    usable = [hca for hca in hcas if hca.fault is None]
    nodes = [hca.facts.numa_nodes for hca in hcas]
    device = kdp.Device(
        id="pool",
        resource=pool.resource,
        health=kdp.Health.healthy() if reason is None else kdp.Health.unhealthy(reason),
        numa_nodes=tuple({node for held in nodes for node in held}) if all(nodes) else (),
        edits=_edits(usable, rdma_cm, variables),
        attributes=kdp.hardware.attributes_of(
            {"adapters": ",".join(faults), "healthyAdapters": len(faults) - len(reasons)}
        ),
        unit=pool.resource,
        handle=tuple(faults),  # the names of many adapters are longer than an attribute may be
    )
    return _slots(device, _prefix(pool.resource.rpartition("/")[2]), pool.containers)


def adapter_devices(
    pool: PoolConfig,
    hcas: Sequence[Hca],
    rdma_cm: str | None,
    *,
    variables: Sequence[str],
    slots: int,
    shared: bool,
    all_ports: bool,
    refused: str | None,
    left_out: list[str],
) -> list[kdp.Device]:
    """Return the slots of single adapters: so many for each. See `pool_devices`.

    Args:
        pool: The pool.
        hcas: Its adapters.
        rdma_cm: The node that all adapters share; None: there is none.
        variables: Those that name a container's adapters.
        slots: How many for each.
        shared: Whether several DRA claims may have one, each with a part of its bandwidth.
        all_ports: Whether each port of an adapter must be active, or one.
        refused: Why no container could open any of them; None: it could.
        left_out: Is given a sentence for each adapter that can be no device.
    """
    found: list[kdp.Device] = []
    for hca in hcas:
        if not _can_be_named(hca, variables, left_out):
            continue
        reason = refused or hca.unhealthy_because(all_ports=all_ports)
        device = kdp.Device(
            id="adapter",
            resource=pool.resource,
            health=kdp.Health.healthy() if reason is None else kdp.Health.unhealthy(reason),
            numa_nodes=hca.facts.numa_nodes,
            edits=_edits([hca], rdma_cm, variables),
            attributes=attributes_of(hca),
            capacity=_capacity(hca),
            shareable=_shares(hca) if shared else None,
            unit=hca.identity,
            identity=hca.hardware,
        )
        found += _slots(device, _prefix(hca.identity), slots)
    return found


def attributes_of(hca: Hca) -> dict[str, str | int]:
    """Return the facts of an adapter, for people and for selectors; what is unknown is left out.

    Two devices with the same ``resource.kubernetes.io/pcieRoot``, say a GPU and an adapter, have a way to each other
    that no processor is on.
    """
    facts = hca.facts
    best = next((port for port in hca.ports if port.fault is None), hca.ports[0] if hca.ports else None)
    told: dict[str, str | int] = {
        "name": hca.name,
        "guid": facts.guid,
        "pciAddress": facts.address or "",
        "resource.kubernetes.io/pcieRoot": facts.root,
        "vendor": facts.vendor,
        "device": facts.device,
        "driver": facts.driver,
        "model": facts.model,
        "board": facts.board,
        "firmware": facts.firmware,
        "linkLayer": best.link_layer if best is not None else "",
        "rate": best.rate if best is not None else "",
        "speed": _speed(hca) or "",
        "netdev": hca.interfaces[0] if hca.interfaces else "",
        "interfaces": ",".join(hca.interfaces),
        "ports": len(hca.ports),
        "activePorts": sum(port.fault is None for port in hca.ports),
    }
    return kdp.hardware.attributes_of(told)


def _can_be_named(hca: Hca, variables: Sequence[str], left_out: list[str]) -> bool:
    """Return whether an id and a variable can hold the adapter's name: the kernel takes any bytes."""
    try:
        kdp.Device(id=_prefix(hca.identity), edits=_edits([hca], None, variables))
    except kdp.KdpError as error:
        left_out.append(f"{hca.path!r} is left out: {error}")
        return False
    return True


def _speed(hca: Hca) -> int | None:
    """Return the whole Gb/s of the first port that is active, else of the first; None: unknown."""
    best = next((port for port in hca.ports if port.fault is None), hca.ports[0] if hca.ports else None)
    told = None if best is None else _RATE.match(best.rate)
    return None if told is None else int(float(told[1]))


def _capacity(hca: Hca) -> dict[str, kdp.Quantity | int]:
    """Return the bandwidth in bits per second."""
    speed = _speed(hca)
    return {"bandwidth": kdp.Quantity(f"{speed}G")} if speed else {}


def _shares(hca: Hca) -> bool | dict[str, kdp.RequestPolicy]:
    """Return what a claim may have of the bandwidth: whole Gb/s, one if it does not say."""
    one = kdp.Quantity("1G")
    return {"bandwidth": kdp.RequestPolicy(default=one, min=one, step=one)} if _speed(hca) else True


def _edits(hcas: Sequence[Hca], rdma_cm: str | None, variables: Sequence[str]) -> kdp.ContainerEdits:
    nodes = [node for hca in hcas for node in hca.nodes]
    return kdp.ContainerEdits(
        env=dict.fromkeys(variables, ",".join(hca.name for hca in hcas)),
        device_nodes=[kdp.DeviceNode(host_path=node) for node in (*nodes, *([rdma_cm] if rdma_cm else []))],
    )


def _slots(device: kdp.Device, prefix: str, count: int) -> list[kdp.Device]:
    return [
        kdp.Device(
            id=f"{prefix}-{number}",
            resource=device.resource,
            health=device.health,
            numa_nodes=device.numa_nodes,
            edits=device.edits,
            attributes=device.attributes,
            capacity=device.capacity,
            shareable=device.shareable,
            unit=device.unit,
            identity=device.identity,
            handle=device.handle,
        )
        for number in range(count)
    ]


def _prefix(name: str) -> str:
    if len(name) <= _LONGEST_PREFIX:
        return name
    return f"{name[: _LONGEST_PREFIX - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
