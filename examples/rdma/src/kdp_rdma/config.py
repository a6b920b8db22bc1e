"""What the admin wants: from the options, or from a file that was written for one of the Go plugins, and checked.

Two files are understood, each with the field names of its plugin: that of k8s-rdma-shared-dev-plugin (``configList``)
in the modes ``pool`` and ``hca``, and that of sriov-network-device-plugin (``resourceList``) in the mode ``vf``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

import kdp

from .document import Item, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

Mode = Literal["pool", "hca", "vf"]

MAX_CONTAINERS = 10_000
"""Of one pool: more would come near the 4 MiB that the kubelet takes in one message."""

POOL_PREFIX, VF_PREFIX = "rdma", "intel.com"
"""The domains that the Go plugins give to names without one; pods in use ask for these."""

ADAPTERS = "RDMA_DEVICES"
"""The variable that names a container's adapters: in ``/sys/class/infiniband`` it sees those of others as well."""

_HEXADECIMAL = re.compile(r"(0x)?([0-9a-f]{1,8})")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@attrs.frozen(kw_only=True)
class Selectors:
    """Which adapters are meant: one value of each field that is not empty must fit.

    Attributes:
        vendors: PCI vendor ids, as ``15b3``.
        device_ids: PCI device ids, as ``1017``.
        drivers: As ``mlx5_core``.
        if_names: Names of network interfaces.
        link_types: ``ether``, ``infiniband``.
    """

    vendors: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class PoolConfig:
    """A resource of adapters.

    Attributes:
        resource: Its name, as ``rdma/hca_shared_devices_a``.
        containers: How many containers may have the pool at a time; not used in the mode ``hca``.
        selectors: Which adapters it has.
    """

    resource: str
    containers: int
    selectors: Selectors

    @property
    def variable(self) -> str:
        """The environment variable that names a container's adapters of this resource, and of no other.

        Of several resources for one container, the kubelet merges the variables, and the last value wins.
        """
        return f"{ADAPTERS}_{re.sub('[^A-Z0-9]', '_', self.resource.upper())}"


@attrs.frozen
class Functions:
    """Virtual functions of a physical one, as ``eth0#0-3,7``.

    Attributes:
        parent: The interface's name, or the PCI address, of the physical function.
        numbers: Which of them; None: all.
    """

    parent: str
    numbers: frozenset[int] | None


@attrs.frozen(kw_only=True)
class VfSelector:
    """Which virtual functions are meant, and what a container gets besides.

    Attributes:
        vendors: PCI vendor ids.
        devices: PCI device ids.
        drivers: The drivers that they are bound to.
        pci_addresses: Their own addresses.
        acpi_indexes: Their ACPI indexes.
        pf_names: By the network interface of their physical function.
        root_devices: By the PCI address of their physical function.
        link_types: ``ether``, ``infiniband``.
        p_keys: Their default partition keys.
        is_rdma: Only those with RDMA, whose nodes the container gets.
        need_vhost_net: The container gets ``/dev/vhost-net`` and ``/dev/net/tun``.
        vdpa_type: Only those with a vDPA device of this kind, ``vhost`` or ``virtio``; empty: whatever they have.
        aux_types: ``sf``: subfunctions are meant, not virtual functions.
    """

    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    acpi_indexes: tuple[str, ...] = ()
    pf_names: tuple[Functions, ...] = ()
    root_devices: tuple[Functions, ...] = ()
    link_types: tuple[str, ...] = ()
    p_keys: tuple[int, ...] = ()
    is_rdma: bool = False
    need_vhost_net: bool = False
    vdpa_type: str = ""
    aux_types: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class VfConfig:
    """A resource of virtual functions.

    Attributes:
        resource: Its name, as ``intel.com/mlnx_sriov_rdma``.
        selectors: The first that fits a function says what its container gets.
        with_numa: Whether the memory node is told.
        extra: More for the variable ``…_INFO``: by PCI address, or for all by ``*``.
        names: What the admin calls the fields of the selectors.
    """

    resource: str
    selectors: tuple[VfSelector, ...]
    with_numa: bool = True
    extra: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict[str, Mapping[str, str]])
    names: Mapping[str, str] = attrs.field(factory=dict[str, str])

    @property
    def variable(self) -> str:
        """The environment variable with the addresses, as sriov-network-device-plugin names it."""
        return f"PCIDEVICE_{self.resource.replace('/', '_').replace('.', '_').upper()}"


@attrs.frozen(kw_only=True)
class Config:
    """All resources.

    Attributes:
        pools: In the modes ``pool`` and ``hca``.
        vfs: In the mode ``vf``.
        interval: Seconds between two looks; 0: never; None: not told.
        warnings: What is odd but keeps nothing from working, a sentence each.
    """

    pools: tuple[PoolConfig, ...] = ()
    vfs: tuple[VfConfig, ...] = ()
    interval: int | None = None
    warnings: tuple[str, ...] = ()

    def variables(self, pool: PoolConfig) -> tuple[str, ...]:
        """Return the variables with a container's adapters; the short one is clear only where there is one resource."""
        return (pool.variable, ADAPTERS) if len(self.pools) == 1 else (pool.variable,)

    @property
    def needs_rdma(self) -> bool:
        """Whether a device that it wants has RDMA."""
        return bool(self.pools) or any(selector.is_rdma for held in self.vfs for selector in held.selectors)

    @property
    def resources(self) -> list[str]:
        """The names."""
        return [pool.resource for pool in self.pools] + [vf.resource for vf in self.vfs]


def resource_name(name: str) -> str:
    """Return a checked resource name.

    Raises:
        kdp.InvalidValueError: The kubelet would refuse it.
    """
    kdp.Device(id="x", resource=name)
    return name


def hexadecimal(text: str) -> str | None:
    """Return a PCI id as four lower-case digits; None: it is none."""
    match = _HEXADECIMAL.fullmatch(text.strip().lower())
    return None if match is None else match[2].lstrip("0").rjust(4, "0")


def functions_of(text: str) -> Functions | None:
    """Return what ``eth0`` or ``eth0#0-3,7`` means; None: nothing."""
    parent, mark, ranges = text.strip().partition("#")
    if not parent:
        return None
    if not mark:
        return Functions(parent, None)
    numbers: set[int] = set()
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or not int(match[1]) <= int(match[2] or match[1]) < 1 << 16:
            return None
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return Functions(parent, frozenset(numbers))


def read(text: str, file: str, mode: Mode, prefix: str | None = None) -> Config:
    """Read a configuration file of one of the Go plugins.

    Args:
        text: What is in it.
        file: Its name, for messages.
        mode: The mode that it must be for.
        prefix: The domain of names without one; None: that plugin's own.

    Raises:
        kdp.ConfigurationError: One sentence: file, field, value, rule, valid example.
    """
    document = parse(text, file)
    keys = {name.lower() for name in document.mapping('{"configList": [...]}')}
    theirs = {"configlist": "k8s-rdma-shared-dev-plugin", "resourcelist": "sriov-network-device-plugin"}
    other, modes = ("configlist", "pool or hca") if mode == "vf" else ("resourcelist", "vf")
    if other in keys:
        raise document.error(f"this is a configuration of {theirs[other]}, and mode is {mode}; set mode to {modes}")
    config = _vf_list(document, prefix or VF_PREFIX) if mode == "vf" else _pool_list(document, prefix or POOL_PREFIX)
    return attrs.evolve(config, warnings=tuple(document.warnings))


def _one_name_each(items: Sequence[tuple[Item, str]], *, part: bool) -> None:
    """Refuse a name that is there twice."""
    seen: set[str] = set()
    for item, resource in items:
        name = resource.rpartition("/")[2] if part else resource
        if name in seen:
            raise item.error(f"{name!r} is there twice; give each resource a name of its own")
        seen.add(name)


def _name(fields: Mapping[str, Item], item: Item, prefix: str) -> str:
    example = '{"resourceName": "hca_shared_devices_a"}'
    if "resourceName" not in fields:
        raise item.error(f"has no resourceName; for example {example}")
    domain = prefix
    if "resourcePrefix" in fields and fields["resourcePrefix"].value:
        domain = fields["resourcePrefix"].text('"example.com"')
    try:
        return resource_name(f"{domain}/{fields['resourceName'].text(example)}")
    except kdp.InvalidValueError as error:
        raise fields["resourceName"].error(str(error)) from error


# -- k8s-rdma-shared-dev-plugin ----------------------------------------------------------------------------------------


def _pool_list(document: Item, prefix: str) -> Config:
    fields = document.fields({"configList", "periodicUpdateInterval"}, '{"configList": [...]}')
    interval = fields.get("periodicUpdateInterval")
    if "configList" not in fields or not fields["configList"].value:
        raise document.error('has no configList; for example {"configList": [{"resourceName": ...}]}')
    found = [(item, _pool(item, prefix)) for item in fields["configList"].items('[{"resourceName": ...}]')]
    _one_name_each([(item, pool.resource) for item, pool in found], part=True)
    return Config(
        pools=tuple(pool for _, pool in found),
        interval=None if interval is None or interval.value is None else interval.number(0, 86_400, "60"),
    )


_SELECTORS = {
    "vendors": "vendors",
    "deviceIDs": "device_ids",
    "drivers": "drivers",
    "ifNames": "if_names",
    "linkTypes": "link_types",
}


def _pool(item: Item, prefix: str) -> PoolConfig:
    known = {"resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors"}
    fields = item.fields(known, '{"resourceName": ..., "rdmaHcaMax": 100, "selectors": {...}}')
    resource = _name(fields, item, prefix)
    if "rdmaHcaMax" not in fields:
        raise item.error('has no rdmaHcaMax, so no container could have it; for example "rdmaHcaMax": 100')
    devices = fields["devices"].texts('["ib0"]') if "devices" in fields else ()
    given: dict[str, tuple[str, ...]] = {}
    if "selectors" in fields and fields["selectors"].value is not None:
        chosen = fields["selectors"].fields(_SELECTORS, '{"vendors": ["15b3"]}')
        given = {_SELECTORS[name]: _values(name, held) for name, held in chosen.items()}
    if devices and any(given.values()):
        raise item.error("has both devices and selectors; put the names of devices into selectors.ifNames")
    if not devices and not any(given.values()):
        raise item.error('selects nothing; for example "selectors": {"vendors": ["15b3"]}')
    return PoolConfig(
        resource=resource,
        containers=fields["rdmaHcaMax"].number(1, MAX_CONTAINERS, "100"),
        selectors=Selectors(**given) if not devices else Selectors(if_names=devices),
    )


def _values(name: str, item: Item) -> tuple[str, ...]:
    if name in ("vendors", "deviceIDs", "devices"):
        return _parsed(item, hexadecimal, "must be a hexadecimal PCI id", '"15b3"')
    return item.texts('["eth0"]')


def _parsed(item: Item, parse: Callable[[str], _T | None], rule: str, example: str) -> tuple[_T, ...]:
    """Return what a function makes of the texts of a list; one of which it makes None is refused."""
    found: list[_T] = []
    for position, text in enumerate(item.texts(f"[{example}]")):
        value = parse(text)
        if value is None:
            raise item.items("")[position].refuse(rule, example)
        found.append(value)
    return tuple(found)


# -- sriov-network-device-plugin ---------------------------------------------------------------------------------------

_VF_SELECTORS = {
    "vendors": "vendors",
    "devices": "devices",
    "drivers": "drivers",
    "pciAddresses": "pci_addresses",
    "acpiIndexes": "acpi_indexes",
    "pfNames": "pf_names",
    "rootDevices": "root_devices",
    "linkTypes": "link_types",
    "pKeys": "p_keys",
    "isRdma": "is_rdma",
    "needVhostNet": "need_vhost_net",
    "vdpaType": "vdpa_type",
    "auxTypes": "aux_types",
}
_NAMES = {**{field: name for name, field in _VF_SELECTORS.items()}, "is_rdma": "isRdma=true", "aux_types": "deviceType"}
_NOT_OF_SUBFUNCTIONS = ("pciAddresses", "acpiIndexes", "pKeys", "vdpaType")
_NOT_HERE = {"ddpProfiles": "DDP profiles"}


def _vf_list(document: Item, prefix: str) -> Config:
    fields = document.fields({"resourceList"}, '{"resourceList": [...]}')
    if "resourceList" not in fields or not fields["resourceList"].value:
        raise document.error('has no resourceList; for example {"resourceList": [{"resourceName": ...}]}')
    found = [(item, _vf(item, prefix)) for item in fields["resourceList"].items('[{"resourceName": ...}]')]
    _one_name_each([(item, held.resource) for item, held in found], part=False)
    return Config(vfs=tuple(held for _, held in found))


def _vf(item: Item, prefix: str) -> VfConfig:
    known = {"resourceName", "resourcePrefix", "deviceType", "excludeTopology", "selectors", "additionalInfo"}
    fields = item.fields(known, '{"resourceName": ..., "selectors": [{...}]}')
    resource = _name(fields, item, prefix)
    kind = fields["deviceType"].value if "deviceType" in fields else None
    if kind not in (None, "", "netDevice", "auxNetDevice"):
        raise fields["deviceType"].refuse(
            "is not supported: kdp serves virtual functions and subfunctions, and sriov-network-device-plugin "
            "serves the others",
            '"netDevice"',
        )
    if "selectors" not in fields or not fields["selectors"].value:
        raise item.error('has no selectors; for example "selectors": [{"vendors": ["15b3"]}]')
    chosen = fields["selectors"]
    selectors = [chosen] if isinstance(chosen.value, dict) else chosen.items('[{"vendors": ["15b3"]}]')
    extra = fields["additionalInfo"].mapping('{"*": {"token": "x"}}') if fields.get("additionalInfo") else {}
    return VfConfig(
        resource=resource,
        selectors=tuple(_vf_selector(selector, is_auxiliary=kind == "auxNetDevice") for selector in selectors),
        with_numa=not ("excludeTopology" in fields and fields["excludeTopology"].flag()),
        extra={
            address: {name: held.text('"x"') for name, held in info.mapping('{"token": "x"}').items()}
            for address, info in extra.items()
        },
        names=_NAMES,
    )


def _vf_selector(item: Item, *, is_auxiliary: bool) -> VfSelector:
    fields = item.fields({*_VF_SELECTORS, *_NOT_HERE}, '{"vendors": ["15b3"]}')
    given: dict[str, Any] = {}
    for name, held in fields.items():
        if name in _NOT_HERE:
            if held.value:
                raise held.error(
                    f"{_NOT_HERE[name]} are not supported, only sriov-network-device-plugin serves them; remove it"
                )
        elif held.value and name in (_NOT_OF_SUBFUNCTIONS if is_auxiliary else ("auxTypes",)):
            here, there = ("auxNetDevice", "netDevice") if is_auxiliary else ("netDevice", "auxNetDevice")
            raise held.error(f"is for deviceType {there}, and this is {here}; remove one of them")
        elif name == "vdpaType":
            if held.value not in (None, "", "vhost", "virtio"):
                raise held.refuse("must be vhost or virtio", '"vhost"')
            given["vdpa_type"] = held.value or ""
        elif name == "auxTypes":
            given["aux_types"] = _parsed(held, {"sf": "sf"}.get, "must be sf, for subfunctions", '"sf"')
        elif name in ("isRdma", "needVhostNet"):
            given[_VF_SELECTORS[name]] = held.flag()
        elif name in ("pfNames", "rootDevices"):
            example = '"eth0#0-3,7"' if name == "pfNames" else '"0000:86:00.0#0-3"'
            rule = "must be a name, optionally followed by # and numbers or ranges"
            given[_VF_SELECTORS[name]] = _parsed(held, functions_of, rule, example)
        elif name == "pKeys":
            keys = _parsed(held, hexadecimal, "must be a hexadecimal partition key", '"0x8001"')
            given["p_keys"] = tuple(int(key, 16) for key in keys)
        else:
            given[_VF_SELECTORS[name]] = _values(name, held)
    selector = VfSelector(**given)
    if is_auxiliary and not selector.aux_types:
        raise item.error('has no auxTypes, and deviceType is auxNetDevice; for example "auxTypes": ["sf"]')
    if selector.vdpa_type and selector.is_rdma:
        raise item.error("has both isRdma and vdpaType, and a function is used the one way or the other; remove one")
    return selector
