"""`NvidiaGpu`: the backend that joins the parts.

All hooks are ``def``: each blocks in a thread of its own, since nobody knows how long the driver takes to answer.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Mapping, Sequence  # noqa: TC003 - kdp converts the options by their annotations
from pathlib import Path  # noqa: TC003
from typing import cast

from typing_extensions import override

import kdp
import kdp.hardware
from kdp.cdi import CDI_DIRECTORIES, CdiRegistry
from kdp.command.yaml_reading import parse_yaml

from . import links, mps, runtime
from .events import address_of
from .gpus import Gpu, Scanner
from .imex import look_for
from .labels import labels_of
from .listing import Listing
from .measuring import MEASUREMENTS, Meter
from .missing import DISPLAY, NVIDIA, missing_gpus
from .nodes import Nodes
from .nvml import LIBRARY_PLACES, Nvml
from .options import Feature, MigMode, Naming, Options, Strategy
from .partitions import Partition, destroy, find, make
from .power import GpuConfig, limit_power, restore_power
from .strategies import JOINED_ENV, edits_of
from .timeslices import TOOL_PLACES, TimeSlices
from .watching import Watcher
from .xids import XidPolicy

logger = logging.getLogger(__name__)

_NODE_LABELS = (
    *(f"feature.node.kubernetes.io/pci-{name}10de.present=true" for name in ("", "0300_", "0302_")),
    "nvidia.com/gpu.present=true",
)
"""Node Feature Discovery's labels of NVIDIA's PCI devices, and the label that NVIDIA's GPU operator sets."""


class NvidiaGpu(kdp.DeviceBackend):
    """NVIDIA GPUs, whole or as MIG instances, through NVML."""

    joined_env = JOINED_ENV
    poll_interval: float | None = 15.0  # NVML tells of errors at once; the rest can wait
    config = GpuConfig
    measurements = MEASUREMENTS
    prepares_every_start = False

    def __init__(
        self,
        host: kdp.hardware.Host,
        *,
        resource: str = "nvidia.com/gpu",
        mig: MigMode = "none",
        mig_profiles: Sequence[str] = (),
        strategies: Sequence[Strategy] = ("envvar",),
        naming: Naming = "uuid",
        driver_root: str = "/",
        driver_mount: str = "/usr/local/nvidia",
        dev_root: str = "/",
        library: Path | None = None,
        nvidia_runtime: bool | None = None,
        cdi_kind: str = "nvidia.com/gpu",
        cdi_dirs: Sequence[str] = CDI_DIRECTORIES,
        features: Sequence[Feature] = (),
        mps: int = 0,
        mps_pipe: str = "/tmp/nvidia-mps",  # noqa: S108 - the daemon's own default
        mps_shm: str = "/dev/shm",  # noqa: S108
        xids: Sequence[str] = (),
        hold_down: float | None = 60.0,
        fabric_check: bool = True,
        require_idle: bool = False,
        power_limits: bool = False,
        time_slices: bool = False,
        imex_channels: Sequence[int] = (),
        imex_required: bool = False,
    ) -> None:
        """Check the options; the driver need not be there yet.

        Args:
            host: The node's files.
            resource: The name of whole GPUs, and under `mig=single` of all MIG instances.
            mig: `none`: a GPU in MIG mode is Unhealthy; `single`: its instances are `resource`, one profile on the
                node; `mixed`: they are resources by profile, as `nvidia.com/mig-1g.10gb`; `dynamic`, DRA only: GPUs in
                MIG mode are divided as claims ask for it, and whatever instances they have are the plugin's; the plugin
                must be root.
            mig_profiles: Serve only these MIG profiles, each also with zero devices; default: all that are there.
            strategies: How containers get their GPUs: `envvar`, `volume-mounts`, `device-nodes`, `cdi`, or several.
            naming: What containers and CDI are told: the `uuid`, or the `index`. The kubelet's ids are UUIDs always.
            driver_root: Where the driver's files are on the node: `/home/kubernetes/bin/nvidia` on GKE.
            driver_mount: Where a container finds a driver that has a root of its own (strategy `device-nodes`).
            dev_root: Where the node's `/dev` is below: `/run/nvidia/driver` for a driver in a container.
            library: `libnvidia-ml.so.1` itself, as the plugin sees it; default: the one below `driver_root`.
            nvidia_runtime: Whether the node has NVIDIA's container runtime; default: look for it (strategies `envvar`
                and `volume-mounts`).
            cdi_kind: The kind of NVIDIA's CDI devices (strategy `cdi`).
            cdi_dirs: Where the node's runtime reads CDI specs, a later directory wins (strategy `cdi`); on Talos
                `/var/cdi/static,/var/cdi/dynamic`.
            features: `gdrcopy`, `gds`, `mofed`: what NVIDIA's runtime is to bring besides.
            mps: How many containers share each GPU through MPS, 2 to 48; 0: none do.
            mps_pipe: The pipe directory of the MPS control daemon on the node.
            mps_shm: The shared memory of the MPS control daemon on the node.
            xids: Changes of the table of XIDs: `63=ignore`, `31=fatal`, `74=condition`, `all=ignore`.
            hold_down: Seconds without a new error after which a GPU that answers is healthy again; none: never.
            fabric_check: `true`: a GPU is Unhealthy if NVML reports that its NVSwitch fabric is not ready, or that its
                NVLinks have a fault. `false` ignores these reports, for machines with a wrong driver.
            require_idle: A GPU that was given back is Unhealthy until no process computes on it; one that is shared,
                when the last container has given it back. Not with `mps`.
            power_limits: DRA: whether a claim may limit its GPUs' power (`powerLimit`); the plugin must be root.
            time_slices: DRA: whether a claim may set the length of time slices (`sharing`), by the driver's
                `nvidia-smi`; the plugin must be root.
            imex_channels: The IMEX channels that each container with a GPU gets, usually 0; default: none.
            imex_required: GPUs are Unhealthy while one of the channels is not on the node; otherwise containers start
                without it.

        Raises:
            kdp.ConfigurationError: Options are wrong or contradict each other.
        """
        self.options = Options(
            resource=resource,
            mig=mig,
            mig_profiles=tuple(mig_profiles),
            strategies=tuple(strategies),
            naming=naming,
            driver_root=driver_root,
            driver_mount=driver_mount,
            dev_root=dev_root,
            nvidia_runtime=nvidia_runtime,
            cdi_kind=cdi_kind,
            cdi_dirs=tuple(cdi_dirs),
            features=tuple(features),
            mps=mps,
            mps_pipe=mps_pipe,
            mps_shm=mps_shm,
            xids=XidPolicy.parse(xids),
            hold_down=hold_down,
            fabric_check=fabric_check,
            require_idle=require_idle,
            power_limits=power_limits,
            time_slices=time_slices,
            imex_channels=tuple(imex_channels),
            imex_required=imex_required,
        )
        self.resource = resource
        self.resources = [self.options.mig_resource(profile) for profile in mig_profiles] if mig == "mixed" else []
        self.host = host
        self._library = library
        self._nvml = Nvml(host, library=library, driver_root=driver_root)
        self._watcher = Watcher(self._nvml, self.options)
        self._cdi = CdiRegistry(host, parse_yaml, self.options.cdi_dirs)
        self._meter = Meter()
        self._scanner = Scanner(host, self.options)
        self._slices = TimeSlices(host, library=library, driver_root=driver_root)
        self._partitions: dict[str, Partition] = {}
        self._counters: dict[str, dict[str, int]] = {}
        self._told: set[str] = set()
        self._made: dict[str, kdp.Device] = {}
        wants_pods = require_idle or power_limits or time_slices or mig == "dynamic"
        self.unused_hooks = (*(() if wants_pods else ("released",)), *(() if mps else ("prepare_container",)))

    # -- opening -------------------------------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        try:
            self._nvml.open()
        except kdp.NotReady as error:
            if self._lacks_hardware():
                raise kdp.NoHardware(f"no NVIDIA GPU is on this node's PCI bus ({error})") from None
            raise
        self._scanner.renew()
        try:
            self._check_node()
        except kdp.NotReady:
            self._nvml.close()
            raise

    def _lacks_hardware(self) -> bool:
        """Return whether the node's PCI bus is known, and no GPU of NVIDIA is on it: no driver is missing there."""
        return bool(self.host.pci_functions()) and not self.host.pci_functions(vendor=NVIDIA, class_code=DISPLAY)

    def _check_node(self) -> None:
        """See that the node has what the options take for granted."""
        options = self.options
        if options.uses_runtime and options.nvidia_runtime is None:
            evidence = runtime.runtime_evidence(self.host)
            if evidence is None:
                raise kdp.NotReady(
                    f"strategies={','.join(options.strategies)} needs NVIDIA's container runtime, and without it "
                    f"containers start with no GPU; the plugin's own container has no GPU from it, and sees none of "
                    f"{', '.join(runtime.RUNTIME_PLACES)}; install the NVIDIA Container Toolkit, set "
                    "strategies=device-nodes or cdi, or set nvidia_runtime=true if it is elsewhere"
                )
            how = (
                "every pod gets it"
                if runtime.is_default(self.host)
                else "pods may have to say runtimeClassName: nvidia"
            )
            self._tell(logging.INFO, f"the node has NVIDIA's container runtime ({evidence}); {how}")
        if options.mps and (problem := self._mps_problem()) is not None:
            raise kdp.NotReady(problem)
        if options.require_idle:
            self._tell(logging.INFO, "require_idle: the plugin must see the node's processes (hostPID: true)")

    def _tell(self, level: int, text: str) -> None:
        """Log what does not change by being said again."""
        if text not in self._told:
            self._told.add(text)
            logger.log(level, "%s", text)

    @override
    def close(self) -> None:
        self._nvml.close()

    # -- devices -------------------------------------------------------------------------------------------------------

    @override
    def discover(self) -> list[kdp.Device]:
        gpus = self._scanner.scan()
        self._watcher.know(gpus)
        cdi = self._cdi if "cdi" in self.options.strategies else None
        if cdi is not None:
            cdi.read()
        listing = Listing(
            self.host,
            self.options,
            gpus,
            missing_gpus=missing_gpus(self.host, gpus),
            cdi=cdi,
            common=self._scanner.versions(),
        )
        devices = listing.devices()
        for complaint in listing.complaints:
            self._tell(logging.ERROR, complaint)
        self._partitions = {f"{gpu.uuid}/{part.name}": part for gpu in gpus for part in gpu.partitions}
        self._counters = listing.counters()
        # Most looks find what the last one found: then the devices are the same objects, and nobody compares them.
        self._made = {device.id: _kept(device, self._made.get(device.id)) for device in devices}
        return [*self._made.values()]

    @override
    def watch(self, report: kdp.Reporter) -> None:
        self._watcher.run(report)

    @override
    def links(self, devices: Sequence[kdp.Device]) -> dict[tuple[str, str], float]:
        units = {device.unit for device in devices}
        return links.weights([gpu for gpu in self._scanner.gpus if gpu.uuid in units])

    @override
    def measure(self) -> dict[str, dict[str, float]]:
        made = self._made  # `discover` replaces it in another thread
        gpus = [gpu for gpu in self._scanner.gpus if gpu.uuid in made]
        return self._meter.measured(gpus, self._watcher.last_xid)

    @override
    def labels(self, devices: Sequence[kdp.Device]) -> dict[str, str]:
        handles = [gpu.handle for gpu in self._scanner.gpus if gpu.handle is not None]
        # A missing GPU has no known product, so it would take the label from the other GPUs.
        known = [device for device in devices if device.handle is not None]
        return labels_of(known, self.options, handles)

    @override
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return self._counters

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        for device in devices:
            if device.handle is None:  # admin access and a toleration reach also a device that is not healthy
                raise kdp.AllocationError(f"{device.id}: {device.health.reason}")
        # Who has admin access looks at a GPU that others may use: what the class asks for is not for it.
        asked: GpuConfig | None = None if devices.admin_access else devices.config
        if asked is not None:
            self._configure(devices, asked)
        nodes = Nodes(self.host, self.options) if any(device.id in self._partitions for device in devices) else None
        edits = kdp.ContainerEdits.merge(
            ((d.id, self._edits(d, nodes, may_make=not devices.admin_access)) for d in devices),
            joined_env=self.joined_env,
        )
        if not self.options.mps:
            return edits
        parts: dict[str, int] = {}
        for device in devices:
            parts[device.unit] = parts.get(device.unit, 0) + 1
        if len(set(parts.values())) > 1:
            raise kdp.AllocationError(
                f"{devices.resource}: the container would get {max(parts.values())} parts of one GPU and "
                f"{min(parts.values())} of another, and MPS has one limit for all; ask for one part"
            )
        gpus: list[Gpu] = list({device.unit: device.handle for device in devices}.values())
        limits = mps.limits(gpus, self.options.mps, next(iter(parts.values())))
        return edits.adding(env=limits)

    def _configure(self, devices: kdp.Allocation, asked: GpuConfig) -> None:
        """Do what a claim asks of its GPUs."""
        if asked.power_limit is not None:
            if not self.options.power_limits:
                raise kdp.AllocationError(
                    f"powerLimit {asked.power_limit}: this node's plugin does not limit power; leave it out, or run "
                    "the plugin with power_limits=true"
                )
            limit_power(devices, asked.power_limit)
            devices.state["power_limit"] = asked.power_limit
        if asked.interval is not None:
            if not self.options.time_slices:
                raise kdp.AllocationError(
                    f"timeSlicing {asked.interval}: this node's plugin does not set time slices; leave it out, or run "
                    "the plugin with time_slices=true"
                )
            self._slices.set(devices, asked.interval)
            devices.state["time_slices"] = asked.interval

    def _edits(self, device: kdp.Device, nodes: Nodes | None, *, may_make: bool) -> kdp.ContainerEdits:
        """Return what a container needs for a device; a partition is made for that."""
        part = self._partitions.get(device.id)
        if part is None:
            return device.edits
        gpu: Gpu = device.handle
        if gpu.handle is None:
            raise kdp.AllocationError(f"{device.id}: the GPU is lost")
        instance = make(gpu, part, gpu.partitions) if may_make else find(gpu, part)
        if instance is None:
            raise kdp.AllocationError(f"{device.id}: no claim has created it, and admin access creates nothing")
        assert nodes is not None  # there is a partition
        problem = nodes.problem(gpu, instance) if "device-nodes" in self.options.strategies else None
        if problem is not None:
            raise kdp.AllocationError(f"{device.id}: {problem}")
        channels = look_for(self.host, self.options, None)
        by_node = nodes if "device-nodes" in self.options.strategies else None
        return edits_of(gpu, instance, by_node, channels, self.options)

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        if (problem := self._mps_problem()) is not None:
            raise kdp.AllocationError(problem)

    def _mps_problem(self) -> str | None:
        return mps.daemon_problem(self.host, self.options.mps_pipe)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        if devices.admin_access:
            return
        for device in devices:
            if device.id in self._partitions and device.handle is not None:
                destroy(device.handle, self._partitions[device.id])
        # Without state, the claim was refused, or kdp was killed before it kept any. What this plugin never sets, and
        # what no part of a GPU has, was refused: there is nothing to undo, and an admin's own setting stays.
        asked: GpuConfig = devices.config or GpuConfig()
        whole = [device for device in devices if device.id == device.unit]
        if "time_slices" in devices.state or (self.options.time_slices and asked.interval is not None):
            self._slices.restore(whole)
        if "power_limit" in devices.state or (self.options.power_limits and asked.power_limit is not None):
            restore_power(whole)
        if self.options.require_idle:
            for device in devices:
                if device.id not in self._partitions:  # which is gone
                    self._watcher.must_be_idle(device.id)

    @override
    def needs(self) -> kdp.Needs:
        options = self.options
        paths = {"/sys", "/proc/driver", f"{options.dev_root.rstrip('/')}/dev"}
        if options.driver_root != "/":
            paths.add(options.driver_root)
        elif self._library is None and not options.uses_runtime:
            paths |= LIBRARY_PLACES  # NVIDIA's runtime would put it into the plugin's own container
        evidence: set[str] = set()
        if options.uses_runtime and options.nvidia_runtime is None:
            evidence = {*map(posixpath.dirname, runtime.RUNTIME_PLACES), "/etc/containerd"}
        if "cdi" in options.strategies:
            paths |= {*options.cdi_dirs, "/dev"}  # whose nodes the specs name
        if options.time_slices and options.driver_root == "/":
            paths |= TOOL_PLACES
        if options.mps:
            paths.add(options.mps_pipe)
        # What NVML opens. NVIDIA's runtime gives it to the plugin's own container; without it nobody does.
        nodes = ("char-nvidia*",)
        changes = options.power_limits or options.time_slices or options.mig == "dynamic"
        capabilities = ("SYS_ADMIN",) if changes else ()
        return kdp.Needs(
            host_paths=tuple(sorted(paths)),
            optional_paths=tuple(sorted(evidence - paths)),
            opened_nodes=() if options.uses_runtime else nodes,
            injected_nodes=nodes if options.uses_runtime else (),
            capabilities=capabilities,
            host_pid=options.require_idle,
            node_labels=_NODE_LABELS,
        )


def _kept(device: kdp.Device, before: kdp.Device | None) -> kdp.Device:
    """Return the previous device if nothing changed, NVML's handles included; a restart of NVML changes them."""
    if before is None or device != before or device.handle is None:
        return device
    now, then = cast("Gpu", device.handle), cast("Gpu", before.handle)
    same = now == then and not now.is_mig and address_of(now.handle) == address_of(then.handle)
    return before if same else device
