"""What the admin wants, checked: a `Options` that exists does not contradict itself."""

from __future__ import annotations

import re
from typing import Literal

import attrs

import kdp

from .mig import PROFILE
from .xids import XidPolicy

MigMode = Literal["none", "single", "mixed", "dynamic"]
Naming = Literal["uuid", "index"]
Strategy = Literal["envvar", "volume-mounts", "device-nodes", "cdi"]
Feature = Literal["gdrcopy", "gds", "mofed"]

MAX_MPS_CLIENTS = 48
"""What an MPS server takes from compute capability 7.5 on; before that, `MAX_MPS_CLIENTS_BEFORE`."""

MAX_MPS_CLIENTS_BEFORE = 16

MAX_IMEX_CHANNEL = (1 << 20) - 1
"""The highest number of a device node."""


@attrs.frozen(kw_only=True)
class Options:
    """The options of `NvidiaGpu`, which tells what each means.

    Raises:
        kdp.ConfigurationError: One is wrong, or two contradict each other.
    """

    resource: str
    mig: MigMode
    mig_profiles: tuple[str, ...]
    strategies: tuple[Strategy, ...]
    naming: Naming
    driver_root: str
    driver_mount: str
    dev_root: str
    nvidia_runtime: bool | None
    cdi_kind: str
    cdi_dirs: tuple[str, ...]
    features: tuple[Feature, ...]
    mps: int
    mps_pipe: str
    mps_shm: str
    xids: XidPolicy
    hold_down: float | None
    fabric_check: bool
    require_idle: bool
    power_limits: bool
    time_slices: bool
    imex_channels: tuple[int, ...]
    imex_required: bool

    def __attrs_post_init__(self) -> None:
        for problem in self._problems():
            raise kdp.ConfigurationError(problem)

    def _problems(self) -> list[str]:
        found: list[str] = []
        if not self.strategies:
            found.append("strategies: must name at least one of envvar, volume-mounts, device-nodes and cdi")
        if len(set(self.strategies)) != len(self.strategies):
            found.append(f"strategies={','.join(self.strategies)}: one is there twice; name each once")
        if {"envvar", "volume-mounts"} <= set(self.strategies):
            found.append(
                "strategies=envvar,volume-mounts: contradict each other, since both say in NVIDIA_VISIBLE_DEVICES "
                "what a container gets, and each something else; choose one"
            )
        if self.features and self.strategies and not self.uses_runtime:
            found.append(
                f"features={','.join(self.features)}: NVIDIA's runtime brings them, and "
                f"strategies={','.join(self.strategies)} does not use it; add envvar or volume-mounts, or remove "
                "features"
            )
        if self.mig_profiles and self.mig == "none":
            found.append(
                f"mig_profiles={','.join(self.mig_profiles)}: contradicts mig=none; set mig=mixed or mig=single"
            )
        if len(self.mig_profiles) > 1 and self.mig == "single":
            found.append(f"mig_profiles={','.join(self.mig_profiles)}: mig=single serves one profile; name one")
        found += [
            f"mig_profiles: {profile!r} must be a profile as nvidia-smi names it; for example 1g.10gb"
            for profile in self.mig_profiles
            if not re.fullmatch(PROFILE, profile)
        ]
        if not 0 <= self.mps <= MAX_MPS_CLIENTS or self.mps == 1:
            found.append(f"mps={self.mps}: must be 0 (off) or the 2 to {MAX_MPS_CLIENTS} containers that share a GPU")
        if self.mig == "dynamic" and "cdi" in self.strategies:
            found.append(
                "strategies=cdi: contradicts mig=dynamic, since NVIDIA's CDI spec has no instance that is yet to be "
                "made; choose device-nodes or envvar"
            )
        if self.mig == "dynamic" and self.naming == "index":
            found.append("naming=index: contradicts mig=dynamic, whose instances change their indices; set naming=uuid")
        if self.mps and self.mig != "none":
            found.append(f"mps={self.mps}: contradicts mig={self.mig}; MPS shares whole GPUs here, so set mig=none")
        if self.mps and self.require_idle:
            found.append(f"mps={self.mps}: contradicts require_idle: the MPS server itself is a process on the GPU")
        named = [
            (name, getattr(self, name)) for name in ("driver_root", "driver_mount", "dev_root", "mps_pipe", "mps_shm")
        ]
        for name, path in (*named, *(("cdi_dirs", path) for path in self.cdi_dirs)):
            if not path.startswith("/") or ".." in path.split("/"):
                found.append(f"{name}={path}: must be an absolute path without '..'; for example /run/nvidia/driver")
        if "cdi" in self.strategies and not self.cdi_dirs:
            found.append("cdi_dirs: must name at least one directory; for example /etc/cdi,/var/run/cdi")
        if "cdi" in self.strategies:
            try:
                kdp.ContainerEdits(cdi_devices=[f"{self.cdi_kind}=0"])
            except kdp.InvalidValueError as error:
                found.append(f"cdi_kind={self.cdi_kind}: {error}")
        if len(set(self.imex_channels)) != len(self.imex_channels):
            found.append(f"imex_channels={_joined(self.imex_channels)}: one is there twice; name each once")
        found += [
            f"imex_channels: {number} must be the number of a channel, 0 to {MAX_IMEX_CHANNEL}; for example 0"
            for number in self.imex_channels
            if not 0 <= number <= MAX_IMEX_CHANNEL
        ]
        if self.imex_required and not self.imex_channels:
            found.append("imex_required: no channel is required; set imex_channels=0, or remove it")
        if self.hold_down is not None and not 0 < self.hold_down < float("inf"):
            found.append(f"hold_down={self.hold_down:g}: must be a number of seconds above 0, or none; for example 60")
        return found

    @property
    def domain(self) -> str:
        """The part of the resource's name before the slash, which those of MIG profiles share."""
        return self.resource.partition("/")[0]

    def mig_resource(self, profile: str) -> str:
        """Return the resource of a MIG profile under ``mixed``: ``nvidia.com/mig-1g.10gb``."""
        return f"{self.domain}/mig-{profile.replace('+', '.')}"

    @property
    def uses_runtime(self) -> bool:
        """Whether NVIDIA's container runtime must read what we say, for a container to get anything of it."""
        return not {"envvar", "volume-mounts"}.isdisjoint(self.strategies)

    @property
    def imex_by_node(self) -> bool:
        """Whether a container's IMEX channels are device nodes of this machine, or NVIDIA's runtime brings them."""
        return bool(self.imex_channels) and self.strategies != ("cdi",)


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
