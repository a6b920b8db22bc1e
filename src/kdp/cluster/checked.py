"""`CheckedApi` and `CheckedNodeApi`: APIs whose answers are what they should be, or an `OddAnswerError`.

A caller reads fields of an answer without a check, because each object that comes in is checked here.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, final

from . import shapes
from .answer_checks import AnswerChecks
from .api import ApiError, ClusterApi, Object, OddAnswerError, Slices, WatchEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from .node_api import NodeApi

_KINDS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


def checked(api: ClusterApi) -> ClusterApi:
    """Return the API with its answers checked; the same object if they are already."""
    return api if isinstance(api, CheckedApi) else CheckedApi(api)


@final
class CheckedApi:
    """Asks another `ClusterApi`, and checks what it answers. The methods are those of `ClusterApi`."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._checks = AnswerChecks()

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """See `ClusterApi.requests`."""
        return self._api.requests

    async def version(self) -> str:
        """Return the server's version."""
        return await self._checks.asked("get version", self._api.version(), lambda found: shapes.check(found, str))

    async def node(self, name: str) -> Object:
        """Return a Node."""
        return await self._checks.object(f"get nodes {name}", self._api.node(name), shapes.NODE)

    async def claim(self, namespace: str, name: str) -> Object:
        """Return a ResourceClaim."""
        return await self._checks.object(
            f"get resourceclaims {namespace}/{name}", self._api.claim(namespace, name), shapes.CLAIM
        )

    async def update_claim_status(self, claim: Mapping[str, Any]) -> Object:
        """Replace a claim's status."""
        return await self._checks.object(
            "update resourceclaims/status", self._api.update_claim_status(claim), shapes.CLAIM
        )

    async def slices(self, *, driver: str, node: str | None = None) -> Slices:
        """Return a driver's slices."""

        def check(found: Slices) -> None:
            shapes.check(list(found.items), [shapes.SLICE], "items")
            shapes.check({"metadata": {"resourceVersion": found.resource_version}}, shapes.BOOKMARK)

        return await self._checks.asked("list resourceslices", self._api.slices(driver=driver, node=node), check)

    async def watch_slices(
        self, *, driver: str, node: str | None = None, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield what changes from a version on."""
        what = "watch resourceslices"
        watch = self._api.watch_slices(driver=driver, node=node, resource_version=resource_version)
        try:
            async with aclosing(watch) as events:
                async for event in events:
                    self._check_event(what, event)
                    yield event
        except ApiError as error:
            self._checks.failed(what, error)
            raise

    async def create_slice(self, item: Mapping[str, Any]) -> Object:
        """Create a slice."""
        return await self._written("create resourceslices", item, self._api.create_slice(item))

    async def update_slice(self, item: Mapping[str, Any]) -> Object:
        """Replace a slice."""
        return await self._written("update resourceslices", item, self._api.update_slice(item))

    async def delete_slice(self, item: Mapping[str, Any]) -> None:
        """Delete a slice."""
        await self._checks.asked("delete resourceslices", self._api.delete_slice(item), lambda _: None)

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        """Create an Event."""
        return await self._checks.asked("create events", self._api.create_event(event), lambda _: None)

    # -- what came -----------------------------------------------------------------------------------------------------

    async def _written(self, what: str, sent: Mapping[str, Any], call: Awaitable[Object]) -> Object:
        def check(found: Object) -> None:
            shapes.check(found, shapes.SLICE)
            for path in (("metadata", "name"), ("spec", "driver")):
                ours, theirs = sent[path[0]].get(path[1]), found[path[0]].get(path[1])
                if ours != theirs:
                    raise shapes.ShapeError(f"{'.'.join(path)} must be {ours!r} as it was sent, this is {theirs!r}")

        return await self._checks.asked(f"{what} {sent['metadata']['name']}", call, check)

    def _check_event(self, what: str, event: WatchEvent) -> None:
        try:
            if event.kind not in _KINDS:
                raise shapes.ShapeError(f"type must be one of {', '.join(_KINDS)}, this is {event.kind!r:.60}")
            shapes.check(event.item, shapes.BOOKMARK if event.kind == "BOOKMARK" else shapes.SLICE, "object")
        except shapes.ShapeError as error:
            raise OddAnswerError(what, str(error)) from None
        self._checks.right(what)


@final
class CheckedNodeApi:
    """Asks another `NodeApi`, and checks what it answers. The methods are those of `NodeApi`."""

    def __init__(self, api: NodeApi) -> None:
        self._api = api
        self._checks = AnswerChecks()

    async def node(self, name: str) -> Object:
        """Return a Node."""
        return await self._checks.object(f"get nodes {name}", self._api.node(name), shapes.NODE)

    async def patch_node(self, name: str, patch: Sequence[Mapping[str, Any]]) -> Object:
        """Change a Node."""
        return await self._checks.object(f"patch nodes {name}", self._api.patch_node(name, patch), shapes.NODE)

    async def pod(self, namespace: str, name: str) -> Object:
        """Return a Pod."""
        return await self._checks.object(f"get pods {namespace}/{name}", self._api.pod(namespace, name), shapes.POD)

    async def evict(self, namespace: str, name: str, *, uid: str, is_dry: bool) -> Object:
        """Ask the Eviction API for a pod."""
        what = f"create pods/eviction {namespace}/{name}"
        call = self._api.evict(namespace, name, uid=uid, is_dry=is_dry)
        return await self._checks.asked(what, call, lambda _: None)

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        """Create an Event."""
        return await self._checks.object("create events", self._api.create_event(event), shapes.EVENT)

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Change an Event."""
        return await self._checks.asked("patch events", self._api.patch_event(namespace, name, patch), lambda _: None)
