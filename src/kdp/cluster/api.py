"""`ClusterApi`, `NodeApi`: what a DRA driver and a device plugin ask of the API server; `ApiError`: how that fails.

Objects are what JSON has, as dicts; each method is one request and may be cancelled. A call is not retried: the caller
knows whether and when it is worth it. `kdp.cluster.client` is the one that speaks to a real server; a test may bring
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, final

import attrs

from ..errors import KdpError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

Object = dict[str, Any]


MOST_WAIT: Final = 60.0
"""Seconds of ``Retry-After`` that are kept: our own pause after refusals has as many, so a wrong header costs no more
than a refusal that lasts, and a right one is of seconds."""


class ApiError(KdpError):
    """The API server refused a request, or was not reached.

    Args:
        message: A sentence: what was asked, and the server's own words.
        status: The HTTP status; 0: there was no answer.
        reason: The server's word for it, as ``Conflict``; "": it gave none.
        retry_after: Seconds that the server asks to wait; None, or no number: it does not say. At most `MOST_WAIT` are
            kept.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = (
            None if retry_after is None or math.isnan(retry_after) else min(max(0.0, retry_after), MOST_WAIT)
        )


@final
class OddAnswerError(ApiError):
    """What came is no answer of an API server: no JSON, or not the object that was asked for. It says nothing of it.

    Args:
        what: What was asked, as ``get nodes node-0``.
        problem: What came, and what it should have been.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(
            f"{what}: the answer of the API server is not understood: {problem}; kdp asks again. If this lasts, "
            "check the proxies between the driver and the API server"
        )


@final
@attrs.frozen
class Slices:
    """Some ResourceSlices, and the version of the whole collection, from which they can be watched."""

    items: Sequence[Object]
    resource_version: str


@final
@attrs.frozen
class WatchEvent:
    """One event of a watch; of a ``BOOKMARK`` only the object's resource version means something."""

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    item: Object


class ClusterApi(Protocol):
    """The API server as a driver sees it. asyncio only; safe to use from several tasks."""

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """How many requests were made, by HTTP status, host, and HTTP method; ``<error>``: without an answer."""
        ...

    async def version(self) -> str:
        """Return the server's version, as ``v1.37.1``.

        Raises:
            ApiError: As all methods do.
        """
        ...

    async def node(self, name: str) -> Object:
        """Return a Node: for its UID, and for what it still says is allocatable."""
        ...

    async def claim(self, namespace: str, name: str) -> Object:
        """Return a ResourceClaim."""
        ...

    async def update_claim_status(self, claim: Mapping[str, Any]) -> Object:
        """Replace a claim's status; 409 if the claim has another resource version by now."""
        ...

    async def slices(self, *, driver: str, node: str | None = None) -> Slices:
        """Return a driver's slices: those of one node, or all."""
        ...

    def watch_slices(
        self, *, driver: str, node: str | None = None, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield what changes from a version on, until the server ends the watch; 410 if the version is too old."""
        ...

    async def create_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create a slice, or only have it judged, and return it as stored; 409 if its name is taken."""
        ...

    async def update_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Replace a slice, or only have it judged, and return it as stored; 409 if it has another version by now."""
        ...

    async def delete_slice(self, item: Mapping[str, Any]) -> None:
        """Delete a slice by UID and resource version; 404 if it is gone, 409 if it has changed."""
        ...

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        """Create an Event in the namespace that it names."""
        ...


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
