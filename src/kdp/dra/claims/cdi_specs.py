"""The CDI spec of a claim: what a container gets that uses it, one file a claim.

A claim's record has the nodes as they were declared; the file has them as they are at each discovery (`current`). A
device that is not what the claim was given is not in it, so that no container starts with something else.

Each device of the claim has what is its own; what the backend's ``allocate`` adds for a whole request, and variables
that several devices join, go with the request's first device. A device that gives nothing has no name: runtimes refuse
it.

============== ========================================================================
kind           ``<driver>/claim``
file           ``kdp_<driver>_claim_<claim uid>.json``
device         ``<claim uid>:<request>:<device>``, and ``:<share id>`` behind a share
============== ========================================================================

A name is never used for anything else, since runtimes and kubelets remember it; and it is always the same for the same
result, since a kubelet up to 1.36 keeps an old answer beside the new one. A request's ``/`` is a ``.``.

The claim itself is in an annotation, so that the state of claims can be found again if it is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from ...cdi import CdiDevice, CdiSpec, cdi_device_name, parse_spec
from ...cdi.render import declared, qualified, resolved
from ...errors import ClaimError, InvalidValueError
from ...model.claims import Claim, NetworkData
from ...model.edits import ContainerEdits, Mount, check_environment
from ...storage.documents import parse_json
from ...supervision.given import Given, owners_of
from .checkpoint import Record, part_of, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ...hardware import Host
    from ...model.devices import Device
    from .checkpoint import ClaimPart, Use


def kind_of(driver: str) -> str:
    """Return the CDI kind of a driver's claims."""
    return f"{driver}/claim"


def check_edits(edits: ContainerEdits) -> None:
    """Refuse what a CDI spec cannot carry.

    Raises:
        InvalidValueError: There are annotations.
    """
    if edits.annotations:
        name = next(iter(edits.annotations))
        raise InvalidValueError(
            f"annotation {name!r}: a DRA driver gives devices by CDI, which has no annotations of containers; leave it "
            "out"
        )


def render_part(
    claim: Claim,
    part: ClaimPart,
    devices: Sequence[Device],
    edits: ContainerEdits,
    *,
    driver: str,
    host: Host,
    joined_env: Collection[str],
    metadata: Mount | None = None,
    network: Mapping[str, NetworkData] | None = None,
    keeps_nodes: bool = False,
    given_of: Callable[[Device, Collection[str]], Given] = Given.of,
) -> tuple[ClaimPart, list[CdiDevice]]:
    """Return a part of a claim with what the kubelet is told of it, and the devices of its CDI spec, nodes as declared.

    Blocks for some stat(2) calls.

    Args:
        claim: The claim.
        part: The part.
        devices: Its devices, in the order of its uses.
        edits: What ``allocate`` returned for all of them.
        driver: The driver's name.
        host: The node's files.
        joined_env: Variables that belong to no single device.
        metadata: What mounts the request's metadata file; None: there is none.
        network: What ``allocate`` knows of network interfaces, by device id.
        keeps_nodes: Whether the same edits stay for as long as the claim is prepared; otherwise they are made anew.
        given_of: Returns the record of a device with these named nodes; see `kdp.supervision.holdings.Present.given`.

    Raises:
        AllocationError: Linux starts no program with the environment variables.
        InvalidValueError: A device node or a mount's source is not there, CDI cannot carry the edits, or ``network``
            names what is none of the devices.
    """
    check_edits(edits)
    check_environment(edits.env)
    interfaces = _network(network or {}, part)
    for node in edits.device_nodes:
        host.device_node(node.host_path)
    for mount in edits.mounts:
        if (fault := host.mount_fault(mount.host_path)) is not None:
            raise InvalidValueError(f"{fault}; a container could not be made")
    given = _items(edits)
    joined = {(name, text) for name, text in edits.env.items() if name in joined_env}
    owns = [_only(device.edits, given - joined) for device in devices]
    rest = _only(edits, given.difference(*map(_items, owns)))
    found: list[CdiDevice] = []
    uses: list[Use] = []
    named = {node.host_path for node in edits.device_nodes} if keeps_nodes else ()
    for position, (use, device, own) in enumerate(zip(part.uses, devices, owns, strict=True)):
        edited = own
        if not position:
            described = ContainerEdits(mounts=() if metadata is None else [metadata])
            edited = ContainerEdits.merge((("", own), ("", rest), ("the device metadata", described)))
        spec = declared(edited)
        ids: list[str] = []
        if spec:
            name = _name(claim, use)
            found.append(CdiDevice(name=name, edits=spec))
            ids.append(qualified(kind_of(driver), name))
        ids += edits.cdi_devices if not position else ()
        network_of = interfaces.get(use.device_id, {})
        was = given_of(device, named)
        uses.append(attrs.evolve(use, cdi_ids=tuple(ids), network=network_of, given=was))
    return attrs.evolve(part, uses=tuple(uses)), found


def _network(network: Mapping[str, NetworkData], part: ClaimPart) -> dict[str, dict[str, Any]]:
    """Return network data as the API has it, by device id."""
    ids = {use.device_id for use in part.uses}
    found: dict[str, dict[str, Any]] = {}
    for device_id, data in network.items():
        if device_id not in ids or not isinstance(data, NetworkData):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"network[{device_id!r}] = {data!r}: must be a kdp.NetworkData of one of the devices "
                f"{', '.join(sorted(ids))}"
            )
        fields = (
            ("interfaceName", data.interface_name),
            ("ips", list(data.ips)),
            ("hardwareAddress", data.hardware_address),
        )
        found[device_id] = {name: value for name, value in fields if value}
    return found


def _name(claim: Claim, use: Use) -> str:
    parts = [claim.uid, use.request.replace("/", "."), use.name, *([use.share_id] if use.share_id else [])]
    return cdi_device_name(":".join(parts))


def _items(edits: ContainerEdits) -> set[object]:
    return {*edits.env.items(), *edits.device_nodes, *edits.mounts, *edits.hooks}


def _only(edits: ContainerEdits, items: Collection[object]) -> ContainerEdits:
    """Return of edits what is among these items."""
    return ContainerEdits(
        env={name: text for name, text in edits.env.items() if (name, text) in items},
        device_nodes=[node for node in edits.device_nodes if node in items],
        mounts=[mount for mount in edits.mounts if mount in items],
        hooks=[hook for hook in edits.hooks if hook in items],
    )


def spec_of(
    driver: str, record: Record, devices: Sequence[CdiDevice], *, joined_env: Mapping[str, str]
) -> CdiSpec | None:
    """Return a claim's spec, or `None` if the claim gives nothing.

    Args:
        driver: The driver's name.
        record: The claim's record.
        devices: The devices of all requests.
        joined_env: Variables that several devices join, with their separators.

    Raises:
        AllocationError: Linux starts no program with the environment variables.
        ClaimError: Two requests set one variable to different values.
    """
    if not devices:
        return None
    devices = _in_one_environment(record, devices, joined_env)
    parts = [part.as_json() for part in record.parts]
    text = json.dumps({"claim": attrs.asdict(record.claim, recurse=False), "parts": parts}, separators=(",", ":"))
    return CdiSpec(kind=kind_of(driver), devices=devices, annotations={f"{driver}/claim": text})


def _in_one_environment(
    record: Record, devices: Sequence[CdiDevice], joined_env: Mapping[str, str]
) -> Sequence[CdiDevice]:
    """Return the devices with one value for each variable: a container may use all requests of a claim.

    A runtime applies the devices one after the other, and the last value would silently win.
    """
    requests = {_name(record.claim, use): use.request for use in record.uses}
    found: dict[str, dict[str, str]] = {}
    for device in devices:
        for variable in device.edits.env:
            name, _, text = variable.partition("=")
            found.setdefault(name, {}).setdefault(text, requests[device.name])
    values: dict[str, str] = {}
    for name, texts in found.items():
        if len(texts) > 1 and name not in joined_env:
            (one, request), (other, second) = [*texts.items()][:2]
            raise ClaimError(
                f"requests {request} and {second} set environment variable {name} to different values, {one} and "
                f"{other}, and a container may use both; give the requests equal parameters, or have the driver join "
                "the variable by joined_env or name it by its request"
            )
        values[name] = joined_env.get(name, "").join(texts)
    check_environment(values)
    return [_with_values(device, values) for device in devices]


def _with_values(device: CdiDevice, values: Mapping[str, str]) -> CdiDevice:
    names = [variable.partition("=")[0] for variable in device.edits.env]
    edits = attrs.evolve(device.edits, env=[f"{name}={values[name]}" for name in names])
    return attrs.evolve(device, edits=edits)


def current(record: Record, known: Mapping[str, Device], host: Host) -> CdiSpec | None:
    """Return a claim's spec as containers are to see it now; None: it has none, or nothing of it may be given any more.

    Blocks for a stat(2) a node.

    Args:
        record: The claim's record.
        known: The devices that there are, by id.
        host: The node's files.
    """
    spec = _declared(record)
    if spec is None:
        return None
    lost = _outdated(record, spec, known)
    devices = [
        attrs.evolve(device, edits=resolved(device.edits, host)) for device in spec.devices if device.name not in lost
    ]
    return attrs.evolve(spec, devices=devices) if devices else None


def check_current(record: Record, known: Mapping[str, Device]) -> None:
    """Check that all devices of a claim's spec may still be given.

    Args:
        record: The claim's record.
        known: The devices that there are, by id; none: they are not known.

    Raises:
        ClaimError: One may not.
    """
    spec = _declared(record)
    if spec is not None and (lost := _outdated(record, spec, known)):
        raise ClaimError("; ".join(lost.values()))


def _declared(record: Record) -> CdiSpec | None:
    return None if record.spec is None else parse_spec(json.dumps(record.spec), where="the saved CDI spec")


def _outdated(record: Record, spec: CdiSpec, known: Mapping[str, Device]) -> dict[str, str]:
    """Return why devices of a claim's spec must not be given any more, by their names in it."""
    found: dict[str, str] = {}
    owners = owners_of(known.values()) if any(use.device_id not in known for use in record.uses) else {}
    nodes = {each.name: [node.host_path or node.path for node in each.edits.device_nodes] for each in spec.devices}
    for use in record.uses:
        name = _name(record.claim, use)
        device = known.get(use.device_id)
        if device is not None:
            fault = use.given.fault(device)
        else:
            heir = next(use.given.heirs(nodes.get(name, ()), owners), None)
            fault = None if heir is None else f"is gone, and {heir[0]} is {heir[1].id} now; delete the pod"
        if fault is not None:
            found[name] = f"device {use.device_id} {fault}"
    return found


def record_of(spec: CdiSpec) -> Record | None:
    """Return the record of a claim of which only its spec tells; `None` if the spec does not.

    The state that the backend left is lost, so the record says that the claim may be in any state. It keeps the spec,
    which was written when the claim was complete.
    """
    try:
        body: dict[str, Any] = parse_json(spec.annotations[spec.kind])
        parts = tuple(map(part_of, body["parts"]))
        return Record(claim=typed(Claim, body["claim"]), parts=parts, spec=spec.as_json())
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
