"""`Hwrng`: the backend. What it has beyond a static device: a self-test at two moments.

``prepare_container`` runs before every start of a container, restarts included; that is the place for a self-test. But
the kubelet skips it while the plugin is not registered yet, as after its own restart, so Allocate tests as well:
nothing may depend on ``prepare_container`` alone. So a DRA driver, which calls it once for each claim, is enough.
"""

from __future__ import annotations

import math
import os
import time

from typing_extensions import override

import kdp
import kdp.hardware

from .selftest import Fault, examine, sample

_CHOSEN = "/sys/class/misc/hw_random/rng_current"


class Hwrng(kdp.DeviceBackend):
    """``/dev/hwrng`` for ``count`` containers at a time: any number of processes may read it."""

    resource = "example.com/hwrng"
    prepares_every_start = False

    def __init__(
        self, host: kdp.hardware.Host, count: int = 10, node: str = "/dev/hwrng", patience: float = 2.0
    ) -> None:
        """Make the backend.

        Args:
            host: The node's files.
            count: How many containers may have it at a time.
            node: The generator's device node, on the node.
            patience: Seconds in which the generator must give the self-test's bytes.

        Raises:
            kdp.ConfigurationError: A number is not positive, or the node's path is not absolute.
        """
        if not node.startswith("/"):
            raise kdp.ConfigurationError(f"node {node!r} must be an absolute path of the node; for example /dev/hwrng")
        if count < 1 or not 0 < patience < math.inf:
            raise kdp.ConfigurationError(
                f"count {count} and patience {patience} must be more than 0; for example count=10"
            )
        self.host, self.count, self.node, self.patience = host, count, node, patience

    @override
    def discover(self) -> list[kdp.Device]:
        # The name of the driver is the kernel's choice and may change; "none": there is no generator behind the node.
        generator = self.host.reading(_CHOSEN).value
        health = self._health(generator)
        edits = kdp.ContainerEdits(device_nodes=[kdp.DeviceNode(host_path=self.node, permissions="r")])
        return [
            kdp.Device(
                id=f"hwrng-{seat}",
                unit="hwrng",
                health=health,
                edits=edits,
                attributes={"generator": generator} if generator else {},
            )
            for seat in range(self.count)
        ]

    def _health(self, generator: str | None) -> kdp.Health:
        if generator == "none":
            return kdp.Health.unhealthy("the kernel has no generator behind it")
        try:
            os.close(os.open(self.host.path(self.node), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except FileNotFoundError:
            return kdp.Health.healthy()  # kdp itself says that the node is gone
        except PermissionError as error:
            return kdp.Health.unhealthy(
                f"the plugin may not open {self.node} ({error.strerror}): its container must be privileged, "
                f"as kdp manifests hwrng writes it"
            )
        except OSError as error:
            return kdp.Health.unhealthy(f"{self.node} cannot be opened ({error.strerror})")
        return kdp.Health.healthy()

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self._test(devices)
        return kdp.ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=self.joined_env)

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self._test(devices)

    def _test(self, devices: kdp.Allocation) -> None:
        deadline = min(time.monotonic() + self.patience, devices.deadline)
        try:
            examine(sample(self.host.path(self.node), deadline=deadline))
        except Fault as fault:
            raise kdp.AllocationError(
                f"the random number generator {self.node} of this node does not work: {fault}; the pod may run on "
                f"another node"
            ) from fault
        except OSError as error:
            raise kdp.AllocationError(
                f"the random number generator {self.node} of this node cannot be read ({error.strerror}); the pod may "
                f"run on another node"
            ) from error

    @override
    def needs(self) -> kdp.Needs:
        return kdp.Needs(host_paths=("/sys",), opened_nodes=(self.node,))
