"""`Rdma`: the backend that joins the parts.

``discover`` says what is there now. ``watch`` changes nothing itself: it waits for the kernel's hints and asks for a
discovery.
"""

from __future__ import annotations

import functools
import itertools
import logging
from pathlib import Path  # noqa: TC003 - kdp converts the option by this annotation
from typing import TYPE_CHECKING, Literal

import anyio
from typing_extensions import override

import kdp
import kdp.hardware

from .config import read
from .counters import MEASUREMENTS, measured
from .functions import read_functions, read_subfunctions
from .hca import Hca, Known, rdma_cm, read_hcas, shares_namespaces
from .labels import labels_of
from .network import network_data
from .options import Options
from .pools import adapter_devices, pool_devices
from .selectors import hca_fits
from .uplinks import judged_with
from .vfs import info_variable, vf_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import Config, Mode

logger = logging.getLogger(__name__)

SETTLING = 0.05
"""Seconds after a link's event until a second look: a port's state may follow its interface's by some milliseconds."""

DEFAULT_INTERVAL = 30.0
"""Seconds between two looks; the floor only, since the kernel tells what changes."""

_OF_FUNCTIONS = ("pci", "vfio", "auxiliary", "vdpa")
"""Subsystems whose events are of virtual functions and subfunctions."""

EXCLUSIVE = (
    "the node's RDMA network namespace mode is exclusive, so no container with a network of its own could open it; "
    "run 'rdma system set netns shared' on the node"
)


WITHOUT_RDMA_CM = (
    "there is no device node of rdma_cm, so programs that connect by librdmacm fail in containers; "
    "run 'modprobe rdma_ucm' on the node, or set need_rdma_cm=false if no container needs it"
)

_MELLANOX, _NETWORK = 0x15B3, 0x02
"""Whose network adapters all do RDMA; and their PCI class."""

_NODE_LABELS = tuple(
    f"feature.node.kubernetes.io/{name}=true" for name in ("rdma.available", "rdma.capable", "pci-15b3.present")
)
"""Node Feature Discovery's labels: the kernel has RDMA, an adapter can do it, or it has an adapter by Mellanox."""


class Rdma(kdp.DeviceBackend):
    """InfiniBand, RoCE and iWARP adapters: as a shared pool, one by one, or as SR-IOV virtual functions."""

    poll_interval: float | None = DEFAULT_INTERVAL
    measurements = MEASUREMENTS

    def __init__(
        self,
        host: kdp.hardware.Host,
        mode: Literal["pool", "hca", "vf"] = "pool",
        config: Path | None = None,
        resource: str | None = None,
        resource_prefix: str | None = None,
        rdma_hca_max: int | None = None,
        slots: int | None = None,
        ports: Literal["any", "all"] = "any",
        vendors: list[str] | None = None,
        device_ids: list[str] | None = None,
        drivers: list[str] | None = None,
        link_types: list[str] | None = None,
        if_names: list[str] | None = None,
        pf_names: list[str] | None = None,
        is_rdma: bool | None = None,
        shared: bool = False,
        need_rdma_cm: bool = True,
    ) -> None:
        """Take the options.

        Args:
            host: The node's files.
            mode: ``pool``: a container gets all adapters of the pool. ``hca``: it gets one adapter. ``vf``: it gets one
                SR-IOV virtual function.
            config: A JSON file with resources and selectors, in place of the options below it: that of
                k8s-rdma-shared-dev-plugin in the modes pool and hca, that of sriov-network-device-plugin in the mode
                vf.
            resource: The resource's name; default ``rdma/hca_shared_devices``, ``rdma/hca``, ``rdma/vf`` by mode.
            resource_prefix: The domain of names in the file that have none; default ``rdma``, in the mode vf
                ``intel.com``.
            rdma_hca_max: Mode pool: how many containers may have the pool at a time; default 100.
            slots: Mode hca: how many containers may have each adapter at a time; default 1.
            ports: Whether an adapter, in the mode vf that of the physical function, is healthy with ``any`` port
                active, or with ``all``.
            vendors: PCI vendor ids, as 15b3; default: all.
            device_ids: PCI device ids, as 1017; default: all.
            drivers: Drivers of the PCI function, as mlx5_core; default: all.
            link_types: ``ether``, ``infiniband``; default: all.
            if_names: Modes pool and hca: names of network interfaces; default: all.
            pf_names: Mode vf: interfaces of physical functions, with numbers or ranges of functions behind a #, as
                ``eth0#0-3``; a range with commas needs a file. Default: all.
            is_rdma: Mode vf: only functions with RDMA, whose nodes the container gets; default true.
            shared: Mode hca, DRA: whether several claims may have an adapter, each with whole Gb/s of its bandwidth. It
                is counted, not enforced.
            need_rdma_cm: Whether adapters are Unhealthy until the node has the node of the connection manager, since a
                container that starts without it lacks it in all its life; false: they are offered without it.

        Raises:
            kdp.ConfigurationError: Options contradict one another, or the file cannot be read or is not valid.
        """
        self.host = host
        self._mode: Mode = mode
        self._all_ports = ports == "all"
        self._slots = 1 if slots is None else slots
        self._shared = shared
        self._needs_rdma_cm = need_rdma_cm
        self._file: kdp.WatchedFile[Config] | None = None
        options = Options(
            resource=resource,
            rdma_hca_max=rdma_hca_max,
            vendors=vendors,
            device_ids=device_ids,
            drivers=drivers,
            link_types=link_types,
            if_names=if_names,
            pf_names=pf_names,
            is_rdma=is_rdma,
        )
        options.check(mode, config, resource_prefix, slots, shared=shared)
        if config is not None:
            parse = functools.partial(read, file=str(config), mode=mode, prefix=resource_prefix)
            self._file = self.watched_file(config, parse)
        self._config = options.config(mode) if self._file is None else self._file.current
        self._known = Known()
        self._hcas: Sequence[Hca] = ()
        self._interfaces = set[str]()
        self._indices = set[int]()
        self._complaints: set[str] = set()
        self._interval: int | None = None
        self._metered: dict[str, tuple[str, ...]] = {}
        self._made: dict[str, tuple[object, list[kdp.Device], list[str]]] = {}
        self._apply(self._config)

    def _apply(self, config: Config) -> None:
        """Put a configuration in force."""
        self._config, self.resources = config, config.resources
        of_pools = [name for pool in config.pools for name in config.variables(pool)]
        self.joined_env = dict.fromkeys((*of_pools, *(held.variable for held in config.vfs)), ",")
        if config.interval != self._interval:
            self._interval = config.interval
            self.poll_interval = DEFAULT_INTERVAL if config.interval is None else float(config.interval) or None

    # -- what is there -------------------------------------------------------------------------------------------------

    @override
    def discover(self) -> list[kdp.Device]:
        if self._file is not None and (config := self._file.current) is not self._config:
            self._apply(config)
        with self._known.last.scan():
            return self._scan()

    def _scan(self) -> list[kdp.Device]:
        complaints = set(self._config.warnings)
        hcas = read_hcas(self.host, self._known)
        self._hcas = hcas
        shared = shares_namespaces(self.host)
        # In the exclusive mode an adapter is gone from here while a container has its function.
        if not hcas and self._config.needs_rdma and (shared or self._mode != "vf"):
            self._expect_drivers()
        interfaces = {name for hca in hcas for name in hca.interfaces}
        own = {name for hca in hcas if not hca.facts.is_virtual for name in hca.interfaces}
        interfaces |= judged_with(self.host, own)
        manager = rdma_cm(self.host) if hcas else None
        lacking = WITHOUT_RDMA_CM if hcas and manager is None and self._needs_rdma_cm else None
        if lacking is not None:
            complaints.add(lacking)
        complaints.update(
            f"{hca.name}: the device node of {name} is gone, so containers start without it"
            for hca in hcas
            if hca.fault is None
            for name in hca.missing
        )
        if self._mode == "vf":
            found = self._functions(hcas, manager, complaints, interfaces, shared=shared, lacking=lacking)
        else:
            found = self._adapters(hcas, manager, complaints, refused=lacking if shared else EXCLUSIVE)
            paths = {hca.identity: hca.port_paths for hca in hcas} if self._mode == "hca" else {}
            self._metered = {device.id: paths.get(device.unit, ()) for device in found}
        # Whole at any moment: events are compared with them meanwhile.
        self._indices = {index for name in interfaces if (index := self._index_of(name))}
        self._interfaces = interfaces
        for complaint in sorted(complaints - self._complaints):
            logger.warning("%s", complaint)
        self._complaints = complaints
        return found

    def _index_of(self, name: str) -> int | None:
        interface = self.host.net_interface(name)
        return None if interface is None else interface.index

    def _expect_drivers(self) -> None:
        """Refuse to be ready while an adapter is on the PCI bus and no driver has made an RDMA device of any."""
        for function in self.host.pci_functions(vendor=_MELLANOX, class_code=_NETWORK):
            missing = (
                "no driver is bound to it" if function.driver is None else f"{function.driver} made no RDMA device"
            )
            what = f"{function.address} ({function.vendor:04x}:{function.device:04x})"
            raise kdp.NotReady(f"{what}: {missing}; load mlx5_core and mlx5_ib")

    def _adapters(
        self, hcas: Sequence[Hca], manager: str | None, complaints: set[str], *, refused: str | None
    ) -> list[kdp.Device]:
        found: list[kdp.Device] = []
        taken: dict[str, str] = {}
        if refused is not None:
            complaints.add(refused)
        for pool in self._config.pools:
            mine = [hca for hca in hcas if hca_fits(pool.selectors, hca)]
            if not mine:
                complaints.add(_nothing(pool.resource, hcas))
            if self._mode == "hca":
                for hca in mine:
                    if (first := taken.setdefault(hca.identity, pool.resource)) != pool.resource:
                        complaints.add(f"{hca.name} is of {first} already, so {pool.resource} does not have it")
                mine = [hca for hca in mine if taken[hca.identity] == pool.resource]
            # Most looks find what the last one found: then the devices are the same objects, and nobody compares them.
            variables = self._config.variables(pool)
            seen = (pool, mine, manager, variables, refused)
            last = self._made.get(pool.resource)
            if last is None or last[0] != seen:
                left_out: list[str] = []
                if self._mode == "pool":
                    made = pool_devices(
                        pool,
                        mine,
                        manager,
                        variables=variables,
                        all_ports=self._all_ports,
                        refused=refused,
                        left_out=left_out,
                    )
                else:
                    made = adapter_devices(
                        pool,
                        mine,
                        manager,
                        variables=variables,
                        slots=self._slots,
                        shared=self._shared,
                        all_ports=self._all_ports,
                        refused=refused,
                        left_out=left_out,
                    )
                last = self._made[pool.resource] = (seen, made, left_out)
            found += last[1]
            complaints.update(last[2])
        return found

    def _functions(
        self,
        hcas: Sequence[Hca],
        manager: str | None,
        complaints: set[str],
        interfaces: set[str],
        *,
        shared: bool,
        lacking: str | None,
    ) -> list[kdp.Device]:
        last, all_ports = self._known.last, self._all_ports
        functions = read_functions(self.host, hcas, last, all_ports=all_ports)
        if any(selector.aux_types for held in self._config.vfs for selector in held.selectors):
            functions += read_subfunctions(self.host, hcas, last, all_ports=all_ports)
        interfaces |= {name for held in functions for name in held.interfaces}
        interfaces |= judged_with(self.host, {name for held in functions for name in held.parent_interfaces})
        left_out: list[str] = []
        found = vf_devices(
            self.host, self._config.vfs, functions, manager, shared=shared, lacking=lacking, left_out=left_out
        )
        complaints.update(left_out)
        paths = {held.address: [hca.port_paths for hca in held.hcas] for held in functions}
        self._metered = {
            device.id: tuple(itertools.chain.from_iterable(paths[device.id])) if all(paths[device.id]) else ()
            for device in found
        }
        return found

    @override
    def labels(self, devices: Sequence[kdp.Device]) -> dict[str, str]:
        return labels_of(devices, self._hcas)

    @override
    def measure(self) -> dict[str, dict[str, float]]:
        """Return what ports count: of an adapter for each of its slots, of a function its own; of a pool nothing."""
        return measured(self.host, self._metered)

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        edits = devices.edits()
        if devices.claim is not None and self._mode != "pool":  # a pool is no one interface
            told = ((device.id, network_data(self.host, device)) for device in devices)
            devices.network.update({device_id: data for device_id, data in told if data is not None})
        if self._mode != "vf":
            return edits
        return edits.adding(env=info_variable(devices))

    # -- what changes --------------------------------------------------------------------------------------------------

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        subsystems = ["infiniband", "infiniband_verbs", "infiniband_mad"]
        if self._mode == "vf":
            subsystems += [*_OF_FUNCTIONS]
        async with (
            kdp.hardware.UeventWatch(self.host, subsystems=subsystems) as devices,
            kdp.hardware.LinkWatch(self.host) as links,
            anyio.create_task_group() as tasks,
        ):
            for refused in (devices.refused, links.refused):
                if refused is not None:
                    seen = "not seen" if self.poll_interval is None else f"seen every {self.poll_interval:g} s"
                    logger.warning("%s; changes are %s", refused, seen)
            report.rescan()  # for what happened before anybody listened
            tasks.start_soon(self._follow_devices, devices, report)
            tasks.start_soon(self._follow_links, links, report)

    async def _follow_devices(self, watch: kdp.hardware.UeventWatch, report: kdp.Reporter) -> None:
        """An adapter is complete with its last event, ``add`` of class infiniband; on the way out each counts."""
        while True:
            events = await watch.events(at_most=None)
            if not events or any(
                event.subsystem in ("infiniband", *_OF_FUNCTIONS) or event.action == "remove" for event in events
            ):
                report.rescan()

    async def _follow_links(self, watch: kdp.hardware.LinkWatch, report: kdp.Reporter) -> None:
        """A port has no event; that of its interface comes some milliseconds before or after the change.

        An interface that was renamed has its number still, and its events have its new name.
        """
        while True:
            events = await watch.events(at_most=None)
            if not events or any(event.name in self._interfaces or event.index in self._indices for event in events):
                report.rescan()
                await anyio.sleep(SETTLING)
                report.rescan()

    # -- for manifests -------------------------------------------------------------------------------------------------

    @override
    def needs(self) -> kdp.Needs:
        """All of /dev: /dev/infiniband comes and goes with the drivers, and a mount of it would go stale."""
        paths = ("/dev", "/proc", "/sys") if self._mode == "vf" else ("/dev", "/sys")
        return kdp.Needs(host_paths=paths, host_network=True, node_labels=_NODE_LABELS)


def _nothing(resource: str, hcas: Sequence[Hca]) -> str:
    there = ", ".join(
        f"{hca.name} ({':'.join(part for part in (hca.facts.vendor, hca.facts.device) if part) or 'no PCI id'}, "
        f"{hca.facts.driver or 'no driver'}, {'/'.join(hca.interfaces) or 'no interface'}, "
        f"{'/'.join(sorted(hca.link_types)) or 'no link type'})"
        for hca in hcas[:8]
    )
    return f"{resource}: no adapter is selected; there are {there or 'none on this node'}"
