"""`DraManager`: the kubelet's own DRA manager as a process, with the simulated kubelet's manners.

What a test says to `kdp_testkit.dra.kubelet.SimulatedDraKubelet` it can say to this: the same pods, the same errors,
the same names. It is devmgr with an API server, real or simulated.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import anyio

from kdp_testkit.dra.pods import DraPod, PodStartError, PodStopError
from kdp_testkit.patience import PATIENCE

from .devmgr import DeviceManager, NotReached
from .tools import Minor

__all__ = ["DraManager"]

Health = dict[str, dict[str, dict[str, tuple[str, str]]]]
"""Container -> claim -> resource -> health and message."""

_LOOK = 0.02


class DraManager(DeviceManager):
    """A kubelet's real DRA manager and plugin watcher, whose claims and slices are an API server's.

    Args:
        minor: Which Kubernetes.
        url: Where the API server answers.
        root: The kubelet's root directory, kept at the end; default: a temporary one.
        gates: The kubelet's, as ``A=true``.
        wiping_delay: Seconds until the slices of a driver that is gone are wiped.
        watcher: Seconds between two looks for drivers to be registered.
    """

    def __init__(
        self,
        minor: Minor,
        url: str,
        *,
        root: Path | None = None,
        gates: str = "",
        wiping_delay: float = 30.0,
        watcher: float = 1.0,
    ) -> None:
        flags = f"-api-server={url}", f"-wiping-delay={wiping_delay:f}s", f"-watcher-period={watcher:f}s"
        super().__init__(minor, root=root, feature_gates=gates, look=0.0, flags=flags)
        self._active: set[str] = set()

    @property
    def root(self) -> Path:
        """The kubelet's root directory."""
        return self._base

    async def start_pod(self, pod: DraPod) -> dict[str, tuple[str, ...]]:
        """Make a pod's sandbox; return the CDI ids of each container.

        Raises:
            PodStartError: It cannot start now.
        """
        self._active.add(pod.uid)
        said = await self.ask("prepare", object=_object(pod))
        if "refused" in said:
            # These words before it are the kubelet's sync of a pod.
            raise PodStartError(f"Failed to prepare dynamic resources: {said['refused']}")
        return {container: tuple(cdi_ids) for container, cdi_ids in said["cdi_ids"].items()}

    async def stop_pod(self, pod: DraPod) -> None:
        """End a pod whose containers have stopped.

        Raises:
            PodStopError: It stays Terminating.
        """
        said = await self.ask("unprepare", object=_object(pod))
        if "refused" in said:
            raise PodStopError(said["refused"])
        self._active.discard(pod.uid)

    def delete_pod(self, pod: DraPod) -> None:
        """Delete a pod by force."""
        self._active.discard(pod.uid)

    async def reconcile(self) -> None:
        """Look now for pods that are gone."""
        await self.ask("reconcile", active=sorted(self._active))

    async def registered(self) -> dict[str, list[str]]:
        """Return the endpoints of each registered driver, oldest first."""
        found = (await self.ask("drivers"))["drivers"]
        return {driver: [each["endpoint"] for each in instances] for driver, instances in found.items()}

    async def until_registered(self, driver: str, *, instances: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until so many instances of a driver are registered and connected.

        Raises:
            NotReached: They were not.
        """
        with anyio.move_on_after(seconds):
            while True:
                found: Collection[Any] = (await self.ask("drivers"))["drivers"].get(driver, ())
                if len(found) == instances and all(each["connected"] for each in found):
                    return
                await anyio.sleep(_LOOK)
        raise NotReached(f"not within {seconds:g} s: {instances} instances of {driver} are registered\n{self.log(60)}")

    async def dra_health(self, pod: DraPod) -> Health:
        """Return the health of a pod's devices, as in its status."""
        said = (await self.ask("dra_health", object=_object(pod)))["health"]
        return {
            container: {
                claim: {resource: (health, message) for resource, (health, message) in resources.items()}
                for claim, resources in claims.items()
            }
            for container, claims in said.items()
        }


def _object(pod: DraPod) -> dict[str, Any]:
    """Return a pod as the API has it."""
    return {
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "spec": {
            "resourceClaims": [
                {"name": name, "resourceClaimTemplateName": "template"}
                if name in pod.templates
                else {"name": name, "resourceClaimName": claim}
                for name, claim in pod.claims.items()
            ],
            "containers": [
                {
                    "name": container.name,
                    "resources": {"claims": [{"name": name, "request": request} for name, request in container.claims]},
                }
                for container in pod.containers
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": name, "resourceClaimName": pod.claims[name]} for name in pod.templates]
        },
    }
