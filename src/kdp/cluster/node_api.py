"""`NodeApi`: what a device plugin asks of the API server: its node, the pods there, and Events.

The objects and errors are those of `kdp.cluster.api`. `kdp.cluster.client.KubeApi` speaks to a real server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .api import Object


class NodeApi(Protocol):
    """The API server as a device plugin sees it. asyncio only; safe to use from several tasks."""

    async def node(self, name: str) -> Object:
        """Return a Node: for its taints, and whether it is Ready.

        Raises:
            ApiError: As all methods do.
        """
        ...

    async def patch_node(self, name: str, patch: Sequence[Mapping[str, Any]]) -> Object:
        """Change a Node by a JSON patch; 422 if a test of the patch fails."""
        ...

    async def pod(self, namespace: str, name: str) -> Object:
        """Return a Pod: for its UID, and whether it runs."""
        ...

    async def evict(self, namespace: str, name: str, *, uid: str, is_dry: bool) -> Object:
        """Ask the Eviction API for a pod.

        It answers 429 if a PodDisruptionBudget forbids it now, 409 if the pod has another UID, and 404 if it is gone.
        """
        ...

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        """Create an Event in the namespace that it names."""
        ...

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Change an Event by a merge patch; 404 if it has expired."""
        ...
