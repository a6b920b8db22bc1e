"""`Listing`: the GPUs of one discovery as the devices that kdp is told of, by the options for MIG and MPS."""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import kdp
import kdp.hardware

from . import imex, missing, mps
from .mig import profile_names
from .nodes import Nodes
from .partitions import counters, set_name
from .strategies import edits_of, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kdp.cdi import CdiRegistry

    from .gpus import Gpu
    from .mig import Instance
    from .options import Naming, Options
    from .partitions import Partition


_GPU_NODE = re.compile("nvidia[0-9]+")


class Listing:
    """What one discovery makes of the GPUs.

    Args:
        host: The node's files.
        options: The admin's.
        gpus: As they are now.
        missing_gpus: The PCI functions of GPUs that NVML does not report.
        cdi: The node's CDI devices; None: nobody needs them.
        common: Attributes that are the same for all.

    Attributes:
        complaints: What the admin should change, and no device can show; after `devices`.
    """

    def __init__(
        self,
        host: kdp.hardware.Host,
        options: Options,
        gpus: list[Gpu],
        *,
        missing_gpus: list[kdp.hardware.PciFunction],
        cdi: CdiRegistry | None,
        common: Mapping[str, Any],
    ) -> None:
        self._options = options
        self._gpus = gpus
        self._missing = missing_gpus
        self._nodes = Nodes(host, options) if "device-nodes" in options.strategies else None
        self._cdi = cdi
        self._channels = imex.look_for(host, options, cdi)
        self._mps = mps.daemon_problem(host, options.mps_pipe) if options.mps else None
        self._common = common
        self.complaints: list[str] = []
        if self._channels.absent is not None and not options.imex_required:
            self.complaints.append(f"{self._channels.absent}; containers start without it, see imex_required")

    def devices(self) -> list[kdp.Device]:
        """Return the devices, in the order of the GPUs; those that NVML does not report come last."""
        mixed_up = self._mixed_up() if self._options.mig == "single" else None
        self._check_profiles()
        self.complaints += [missing.problem_of_missing(function) for function in self._missing]
        return [
            *(device for gpu in self._gpus for device in self._of_gpu(gpu, mixed_up)),
            *(missing.as_device(function, self._options.resource) for function in self._missing),
        ]

    def _of_gpu(self, gpu: Gpu, mixed_up: str | None) -> Iterable[kdp.Device]:
        if self._options.mig == "none" and gpu.is_mig:
            return [self._device(gpu, None, "it is in MIG mode; set mig=mixed or mig=single, or turn MIG off")]
        if self._options.mps:
            problem = self._mps or mps.client_problem(gpu, self._options.mps)
            if gpu.problem is None and gpu.facts.memory_mib is None:
                self.complaints.append(
                    f"{gpu.uuid}: the driver does not report its memory, so its "
                    f"{self._options.mps} parts have no memory limit; one container can take all of it"
                )
            return [self._device(gpu, None, problem, part=part) for part in range(self._options.mps)]
        if not gpu.is_mig:
            return [self._device(gpu, None, mixed_up)]
        if self._is_divided(gpu):
            if not gpu.partitions:
                self.complaints.append(
                    f"{gpu.uuid}: the driver does not report what it can be divided into, so nothing of it is offered; "
                    "mig=dynamic needs a driver that names its profiles"
                )
            wanted = self._options.mig_profiles
            return [self._partition(gpu, part) for part in gpu.partitions if not wanted or part.profile in wanted]
        return [
            self._device(gpu, instance, mixed_up or self._unlike(instance))
            for instance in gpu.instances
            if self._is_served(instance)
        ]

    def counters(self) -> dict[str, dict[str, int]]:
        """Return what the partitions of each GPU share, by counter set."""
        found = {set_name(gpu.uuid): counters(gpu.partitions) for gpu in self._gpus if self._is_divided(gpu)}
        return {name: counted for name, counted in found.items() if counted}

    def _is_divided(self, gpu: Gpu) -> bool:
        return self._options.mig == "dynamic" and gpu.is_mig is True

    def _is_served(self, instance: Instance) -> bool:
        if instance.profile is None and (self._options.mig == "mixed" or self._options.mig_profiles):
            self.complaints.append(
                f"{instance.uuid}: the driver does not report its profile, so its resource is unknown; it is left out"
            )
            return False
        return not self._options.mig_profiles or instance.profile in self._options.mig_profiles

    def _mixed_up(self) -> str | None:
        """Return why ``single`` cannot be, because not all are of one kind."""
        kinds = self._kinds
        if len(kinds) < 2:
            return None
        there = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        return f"mig=single wants one MIG profile on all GPUs, here are {there}; make them equal, or set mig=mixed"

    def _unlike(self, instance: Instance) -> str | None:
        """Return why ``single`` cannot serve an instance beside the others."""
        if self._options.mig != "single" or instance.profile is not None or not self._kinds:
            return None
        return (
            f"the driver does not report its profile, so kdp cannot see whether it is {next(iter(self._kinds))} as the "
            "others"
        )

    @functools.cached_property
    def _kinds(self) -> dict[str, int]:
        """How many of each kind are served, as far as the driver tells what they are."""
        wanted = self._options.mig_profiles
        kinds = [
            kind
            for gpu in self._gpus
            if gpu.is_mig is not None
            for kind in ([i.profile for i in gpu.instances] if gpu.is_mig else ["whole GPU"])
            if kind is not None and (not gpu.is_mig or not wanted or kind in wanted)
        ]
        return dict(Counter(kinds))

    def _check_profiles(self) -> None:
        wanted = self._options.mig_profiles
        if not wanted:
            return
        known = {profile for gpu in self._gpus if gpu.is_mig and gpu.handle for profile in profile_names(gpu.handle)}
        for profile in wanted:
            if known and not self._may_be_there(profile, known):
                self.complaints.append(
                    f"mig_profiles: no GPU of this node has the profile {profile!r}; they have "
                    f"{', '.join(sorted(known))}"
                )

    def _may_be_there(self, profile: str, known: Collection[str]) -> bool:
        """Return whether a profile uses only some compute slices of its GPU instance, as 1c.3g.71gb does."""
        part, _, whole = profile.partition("c.")
        return profile in known or (
            self._options.mig != "dynamic" and whole in known and int(part) < int(whole.partition("g")[0])
        )

    def _device(self, gpu: Gpu, instance: Instance | None, problem: str | None, part: int | None = None) -> kdp.Device:
        options = self._options
        uuid = instance.uuid if instance else gpu.uuid
        problem = gpu.problem or problem
        if problem is None and self._nodes is not None:
            problem = self._nodes.problem(gpu, instance)
        if problem is None and options.imex_required:
            problem = self._channels.absent
        if problem is None and self._cdi is not None:
            name = f"{options.cdi_kind}={name_of(gpu, instance, options.naming)}"
            problem = self._cdi.problem(name, self._remedy(gpu, instance)) or self._stale_spec(gpu, name)
        resource = options.resource
        if instance is not None and options.mig == "mixed":
            resource = options.mig_resource(str(instance.profile))
        try:
            edits = edits_of(gpu, instance, self._nodes, self._channels, options)
        except kdp.InvalidValueError as error:  # the driver's old names of instances are none for CDI
            problem, edits = problem or str(error), kdp.ContainerEdits()
        return kdp.Device(
            id=uuid if part is None else f"{uuid}/{part}",
            unit=gpu.uuid,
            identity=self._identity(gpu, instance),
            resource=resource,
            health=kdp.Health.healthy() if problem is None else kdp.Health.unhealthy(problem),
            numa_nodes=gpu.facts.numa_nodes,
            edits=edits,
            attributes={**self._attributes(gpu, instance), **self._for_claims(gpu, instance)},
            capacity=_capacity(gpu, instance),
            handle=gpu,
        )

    def _remedy(self, gpu: Gpu, instance: Instance | None) -> str:
        """Return the remedy for a GPU without a CDI spec of its name."""
        assert self._cdi is not None  # it has no such name
        other: Naming = "index" if self._options.naming == "uuid" else "uuid"
        name = f"{self._options.cdi_kind}={name_of(gpu, instance, other)}"
        if self._cdi.problem(name, "") is None:
            return f"set naming={other}, because the spec describes it as {name}"
        searched = " and ".join(self._options.cdi_dirs)
        return f"run nvidia-ctk cdi generate, or set cdi_dirs if the runtime reads other directories than {searched}"

    def _stale_spec(self, gpu: Gpu, name: str) -> str | None:
        """Return which other GPU's device node a CDI spec names, since the driver has numbered its nodes anew."""
        assert self._cdi is not None  # it has the name
        own = f"nvidia{gpu.facts.minor}"
        for path in self._cdi.device_nodes(name):
            node = posixpath.basename(path)
            if gpu.facts.minor is not None and _GPU_NODE.fullmatch(node) and node != own:
                return f"the CDI spec gives {name} the device node {path} of another GPU; run nvidia-ctk cdi generate"
        return None

    def _identity(self, gpu: Gpu, instance: Instance | None) -> str:
        """Return the UUID of the GPU, and the numbers by which a container has it.

        A driver that is loaded again may give the numbers to other GPUs. A virtual machine that moves to another host
        finds another GPU under the same numbers.
        """
        numbers = [gpu.uuid]
        if self._options.naming == "index" and self._options.strategies != ("device-nodes",):
            numbers.append(f"index {name_of(gpu, instance, self._options.naming)}")
        if self._nodes is not None:
            numbers.append(f"minor number {gpu.facts.minor}")
        return ", ".join(numbers)

    def _partition(self, gpu: Gpu, part: Partition) -> kdp.Device:
        instance = part.as_instance()
        problem = gpu.problem or (self._channels.absent if self._options.imex_required else None)
        return kdp.Device(
            id=f"{gpu.uuid}/{part.name}",
            unit=gpu.uuid,
            identity=self._identity(gpu, None),
            resource=self._options.mig_resource(part.profile),
            health=kdp.Health.healthy() if problem is None else kdp.Health.unhealthy(problem),
            numa_nodes=gpu.facts.numa_nodes,
            attributes={**self._attributes(gpu, instance), **self._for_claims(gpu, instance)},
            capacity=_capacity(gpu, instance),
            consumes={set_name(gpu.uuid): part.consumes},
            exists=False,
            handle=gpu,
        )

    def _attributes(self, gpu: Gpu, instance: Instance | None) -> dict[str, Any]:
        """Return the facts that GPU Feature Discovery makes labels of, under the last part of their names."""
        facts = gpu.facts
        compute = facts.compute
        found: dict[str, Any] = {
            "product": facts.name and facts.name.replace(" ", "-"),
            "memory": facts.memory_mib,
            "family": facts.family,
            "compute": compute and kdp.Version(f"{compute[0]}.{compute[1]}.0"),
            "bus": facts.bus,
        }
        if instance is not None:
            found |= {
                "memory": instance.memory_mib,
                "profile": instance.profile,
                "slices": instance.slices,
                "multiprocessors": instance.multiprocessors,
            }
        return kdp.hardware.attributes_of(found | {**self._common})

    def _for_claims(self, gpu: Gpu, instance: Instance | None) -> dict[str, Any]:
        """Return the attributes under the names of NVIDIA's DRA driver, so that its claims select the same devices.

        Standard attributes, as the PCI root, kdp adds itself; the bus is told here, as no device node leads there.
        """
        facts = gpu.facts
        compute = facts.compute
        found: dict[str, Any] = {
            "type": "gpu" if instance is None else "mig",
            "uuid": gpu.uuid if instance is None else instance.uuid or None,
            "parentUUID": None if instance is None else gpu.uuid,
            "productName": facts.name,
            "brand": facts.brand,
            "architecture": facts.family and facts.family.replace("-", " ").title(),
            "cudaComputeCapability": compute and kdp.Version(f"{compute[0]}.{compute[1]}.0"),
            "driverVersion": self._common.get("driver"),
            "cudaDriverVersion": self._common.get("cuda"),
            "resource.kubernetes.io/pciBusID": facts.bus,
        }
        return kdp.hardware.attributes_of(found)


def _capacity(gpu: Gpu, instance: Instance | None) -> dict[str, kdp.Quantity | int]:
    memory = gpu.facts.memory_mib if instance is None else instance.memory_mib
    found: dict[str, kdp.Quantity | int] = {} if memory is None else {"memory": kdp.Quantity(f"{memory}Mi")}
    if instance is not None and instance.multiprocessors is not None:
        found["multiprocessors"] = instance.multiprocessors
    if instance is not None:
        found |= instance.engines or {}
    return found
