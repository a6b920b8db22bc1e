"""The devices of the mode ``vf``: each SR-IOV virtual function is one, and each subfunction, for one container.

Functions that VFIO hands out together, those of one IOMMU group, are one device with the id of the first. The id is the
PCI address, or the subfunction's name, and the variables ``PCIDEVICE_…`` and ``PCIDEVICE_…_INFO`` are
those of sriov-network-device-plugin, because CNI plugins and DPDK programs read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import attrs

import kdp
import kdp.hardware

from .functions import IOMMUFD
from .selectors import ALONE, vf_misfits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .config import VfConfig, VfSelector
    from .functions import VirtualFunction

_VHOST = ("/dev/vhost-net", "/dev/net/tun")
_NAMED = 8
"""Functions in one sentence."""


@attrs.frozen
class Told:
    """What a container is told of a function, by the part that tells it; the handle of its device.

    Attributes:
        variable: The name of the variable with the addresses.
        parts: The value of the variable ``…_INFO`` for this function.
    """

    variable: str
    parts: Mapping[str, Mapping[str, str]]


def info_variable(devices: Sequence[kdp.Device]) -> dict[str, str]:
    """Return the variable ``PCIDEVICE_…_INFO`` for a container's devices, and its value."""
    told = {device.id: cast("Told", device.handle) for device in devices}
    name = f"{next(iter(told.values())).variable}_INFO"
    values = {address: held.parts for address, held in told.items()}
    return {name: json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)}


def vf_devices(
    host: kdp.hardware.Host,
    configs: Sequence[VfConfig],
    functions: Sequence[VirtualFunction],
    rdma_cm: str | None,
    *,
    shared: bool,
    lacking: str | None,
    left_out: list[str],
) -> list[kdp.Device]:
    """Return a device for each function that a resource selects; the first matching resource and selector wins.

    Args:
        host: The node's files.
        configs: The resources.
        functions: What is there.
        rdma_cm: The node that all adapters share; None: there is none.
        shared: Whether adapters stay visible here when a container has them; if not, one that is not visible may be
            in use.
        lacking: The reason for which functions with RDMA are Unhealthy; None if there is no such reason.
        left_out: Is given a sentence for what could be meant and is no device.
    """
    found: list[kdp.Device] = []
    without_rdma: dict[str, list[str]] = {}
    taken: dict[tuple[str, str], list[str]] = {}
    misfits_of: dict[str, list[tuple[VirtualFunction, list[str]]]] = {config.resource: [] for config in configs}
    wanted: list[tuple[VfConfig, VfSelector, VirtualFunction]] = []
    for function in functions:
        # In the exclusive mode the adapter of a container's function is to be seen in that container only.
        may_be_away = not shared and function.driver != "" and not function.is_for_programs
        judged = [
            (config, *_nearest(config, function, is_rdma=bool(function.hcas) or may_be_away)) for config in configs
        ]
        for config, _, misfits in judged:
            misfits_of[config.resource].append((function, misfits))
        meant = [(config, selector) for config, selector, misfits in judged if not misfits]
        for config, _ in meant[1:]:
            taken.setdefault((meant[0][0].resource, config.resource), []).append(function.address)
        if not meant:
            lost = next((config for config, _, misfits in judged if misfits == ["is_rdma"]), None)
            if lost is not None and not function.is_for_programs:
                without_rdma.setdefault(lost.resource, []).append(function.address)
        elif function.carries_default_route:
            left_out.append(
                f"{meant[0][0].resource}: {function.address} ({', '.join(function.interfaces)}) carries the node's "
                "default route and is left out"
            )
        else:
            wanted.append((*meant[0], function))
    holders = _holders(function for _, _, function in wanted)
    for config, selector, function in wanted:
        holder = holders.get(function.group, function.address) if function.is_vfio else function.address
        if holder != function.address:
            left_out.append(
                f"{config.resource}: {function.address} is in IOMMU group {function.group} with {holder}, which a "
                "container gets as a whole, so the group is one device"
            )
            continue
        try:
            found.append(_device(host, config, selector, function, rdma_cm, lacking))
        except kdp.KdpError as error:  # whatever a function says, it is its own affair
            left_out.append(f"{config.resource}: {function.address} is left out: {error}")
    for resource, addresses in without_rdma.items():
        left_out.append(f"{resource}: left out because no RDMA adapter is visible: {_some(addresses)}")
    for (first, second), addresses in taken.items():
        left_out.append(f"{second}: left out because they are of {first} already: {_some(addresses)}")
    for config in configs:
        judged_by = misfits_of[config.resource]
        if config.resource not in without_rdma and all(misfits for _, misfits in judged_by):
            left_out.append(_nothing(config, judged_by))
    return found


def _holders(functions: Iterable[VirtualFunction]) -> dict[int | None, str]:
    """Return by IOMMU group the function that its device is called after: the lowest address of those selected."""
    found: dict[int | None, str] = {}
    for function in functions:
        if function.is_vfio and function.group is not None:
            found[function.group] = min(function.address, found.get(function.group, function.address))
    return found


def _some(addresses: Sequence[str]) -> str:
    return ", ".join(addresses[:_NAMED]) + (", ..." if len(addresses) > _NAMED else "")


def _nearest(config: VfConfig, function: VirtualFunction, *, is_rdma: bool) -> tuple[VfSelector, list[str]]:
    """Return the selector that excludes a function by the fewest fields, and those fields; the first one wins."""
    judged = [(selector, vf_misfits(selector, function, is_rdma=is_rdma)) for selector in config.selectors]
    return min(judged, key=lambda held: (len(held[1]), held[1] != ["is_rdma"]))


def _nothing(config: VfConfig, judged: Sequence[tuple[VirtualFunction, Sequence[str]]]) -> str:
    """Return the sentence that nothing is selected: what is there, and what leaves it out, the nearest first."""
    # Plain cards are no virtual functions. They are named only where there is nothing else, as in a guest.
    virtual = [held for held in judged if not held[0].is_alone]
    names = {ALONE: "having no physical function", **config.names}
    there = ", ".join(
        f"{held.address} ({held.vendor}:{held.device}, {held.driver or 'no driver'}, of "
        f"{'/'.join((*held.parent_interfaces, held.parent))}; left out by "
        f"{', '.join(names.get(name, name) for name in misfits)})"
        for held, misfits in sorted(virtual or judged, key=lambda held: len(held[1]))[:_NAMED]
    )
    if there and not virtual:
        return (
            f"{config.resource}: no virtual function is selected; there are functions without a physical one, as in a "
            f"guest: {there}; name those that containers may have by pciAddresses in a file for the option config"
        )
    return f"{config.resource}: no virtual function is selected; there are {there or 'none on this node'}"


def _vfio_nodes(
    host: kdp.hardware.Host, function: VirtualFunction, parts: dict[str, dict[str, str]]
) -> list[kdp.DeviceNode]:
    """Return the nodes of VFIO for groups, for IOMMUFD, or for both, because a program may use either way.

    A kernel without groups (``CONFIG_VFIO_GROUP=n``) has only the nodes for IOMMUFD.
    """
    found: list[kdp.DeviceNode] = []
    inside = f"/dev/vfio/{function.group}"
    outside = f"/dev/vfio/noiommu-{function.group}" if function.is_without_iommu else inside
    if function.group is not None and (not function.cdevs or host.device_number(outside) is not None):
        found.append(kdp.DeviceNode(host_path="/dev/vfio/vfio"))
        found.append(kdp.DeviceNode(host_path=outside, container_path=inside))
        parts["vfio"] = {"mount": "/dev/vfio/vfio", "dev-mount": inside}
    if function.cdevs:
        found += [kdp.DeviceNode(host_path=path) for path in (IOMMUFD, *function.cdevs)]
        parts["iommufd"] = {"mount": IOMMUFD, "dev-mount": function.cdevs[0]}
    return found


def _device(
    host: kdp.hardware.Host,
    config: VfConfig,
    selector: VfSelector,
    function: VirtualFunction,
    rdma_cm: str | None,
    lacking: str | None,
) -> kdp.Device:
    parts: dict[str, dict[str, str]] = {"generic": {"deviceID": function.address}}
    nodes: list[kdp.DeviceNode] = []
    reasons: list[str] = []
    if config.extra:
        parts["extra"] = {**config.extra.get("*", {}), **config.extra.get(function.address, {})}
    if function.is_vfio:
        if function.group is None and not function.cdevs:
            reasons.append(f"{function.address} is bound to {function.driver} and in no IOMMU group")
        reasons += [function.group_fault] if function.group_fault is not None else []
        nodes += _vfio_nodes(host, function, parts)
    elif function.is_uio:
        if not function.uio_nodes:
            reasons.append(f"{function.address} is bound to {function.driver}, and has no device node")
        nodes += [kdp.DeviceNode(host_path=path) for path in function.uio_nodes]
        parts["uio"] = {"mount": function.uio_nodes[0]} if function.uio_nodes else {}
    elif not function.is_bound:
        reasons.append(f"{function.address} is bound to no driver")
    if selector.is_rdma and function.hcas:
        reasons += [hca.fault for hca in function.hcas if hca.fault is not None]
        reasons += [lacking] if lacking is not None else []
        paths = [node for hca in function.hcas for node in hca.nodes] + ([rdma_cm] if rdma_cm else [])
        nodes += [kdp.DeviceNode(host_path=path) for path in paths]
        kinds = ("uverbs", "umad", "issm", "rdma_cm")
        parts["rdma"] = {kind: path for path in paths for kind in kinds if kind in path}
        parts["rdma"]["rdma_dev"] = function.hcas[0].name
    if selector.vdpa_type and function.vdpa is not None:
        node = function.vdpa.node
        if node is not None:
            nodes.append(kdp.DeviceNode(host_path=node))
        elif function.vdpa.kind == "vhost":
            reasons.append(f"the kernel names no device node for the vDPA device of {function.address}")
        parts["vdpa"] = {} if node is None else {"mount": node}
    if selector.need_vhost_net:
        nodes += [kdp.DeviceNode(host_path=path) for path in _VHOST]  # kdp looks whether they are there
        parts["vhost"] = {"net-mount": _VHOST[0], "tun-mount": _VHOST[1]}
    if function.uplink_fault is not None:
        reasons.append(function.uplink_fault)
    attributes: dict[str, str | int] = {
        "driver": function.driver,
        "vendor": function.vendor,
        "device": function.device,
        "parent": function.parent,
        "parentInterfaces": ",".join(function.parent_interfaces),
        "netdev": function.interfaces[0] if function.interfaces else "",
        "linkLayer": {"ether": "Ethernet", "infiniband": "InfiniBand"}.get(function.link_type, ""),
        "resource.kubernetes.io/pcieRoot": function.root,
        "adapters": ",".join(hca.name for hca in function.hcas),
    }
    if function.is_vfio:
        attributes["groupMembers"] = ",".join(name for name in function.group_members if name != function.address)
    if function.vdpa is not None:
        attributes["vdpa"] = function.vdpa.kind
    if function.aux_type:
        attributes["auxType"] = function.aux_type
    if function.number is not None:
        attributes["number"] = function.number
    return kdp.Device(
        id=function.address,
        resource=config.resource,
        health=kdp.Health.unhealthy("; ".join(reasons)) if reasons else kdp.Health.healthy(),
        numa_nodes=function.numa_nodes if config.with_numa else (),
        edits=kdp.ContainerEdits(env={config.variable: function.address}, device_nodes=nodes),
        attributes=kdp.hardware.attributes_of(attributes),
        identity=function.identity,
        handle=Told(config.variable, parts),
    )
