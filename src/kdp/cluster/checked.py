"""`CheckedApi`: a `ClusterApi` whose answers are what they should be, or an `OddAnswerError`.

Whoever asks reads fields of an answer without asking whether they are there. Here it is asked, once, for each object
that comes in, and said: one ERROR line when the answers to a kind of request become odd, one when they are right again.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, final

from . import shapes
from .api import ClusterApi, Object, OddAnswerError, Slices, WatchEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

logger = logging.getLogger(__name__)

_KINDS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
_T = TypeVar("_T")


def checked(api: ClusterApi) -> ClusterApi:
    """Return the API with its answers checked; the same object if they are already."""
    return api if isinstance(api, CheckedApi) else CheckedApi(api)


@final
class CheckedApi:
    """Asks another `ClusterApi`, and checks what it answers. The methods are those of `ClusterApi`."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._odd: set[str] = set()

    async def version(self) -> str:
        """Return the server's version."""
        return await self._asked("get version", self._api.version(), lambda found: shapes.check(found, str))

    async def node(self, name: str) -> Object:
        """Return a Node."""
        return await self._object(f"get nodes {name}", self._api.node(name), shapes.NODE)

    async def claim(self, namespace: str, name: str) -> Object:
        """Return a ResourceClaim."""
        return await self._object(
            f"get resourceclaims {namespace}/{name}", self._api.claim(namespace, name), shapes.CLAIM
        )

    async def update_claim_status(self, claim: Mapping[str, Any]) -> Object:
        """Replace a claim's status."""
        return await self._object("update resourceclaims/status", self._api.update_claim_status(claim), shapes.CLAIM)

    async def slices(self, *, driver: str, node: str | None = None) -> Slices:
        """Return a driver's slices."""

        def check(found: Slices) -> None:
            shapes.check(list(found.items), [shapes.SLICE], "items")
            shapes.check({"metadata": {"resourceVersion": found.resource_version}}, shapes.BOOKMARK)

        return await self._asked("list resourceslices", self._api.slices(driver=driver, node=node), check)

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
        except OddAnswerError as error:
            self._tell(what, error)
            raise

    async def create_slice(self, item: Mapping[str, Any]) -> Object:
        """Create a slice."""
        return await self._written("create resourceslices", item, self._api.create_slice(item))

    async def update_slice(self, item: Mapping[str, Any]) -> Object:
        """Replace a slice."""
        return await self._written("update resourceslices", item, self._api.update_slice(item))

    async def delete_slice(self, item: Mapping[str, Any]) -> None:
        """Delete a slice."""
        await self._asked("delete resourceslices", self._api.delete_slice(item), lambda _: None)

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        """Create an Event."""
        return await self._asked("create events", self._api.create_event(event), lambda _: None)

    # -- what came -----------------------------------------------------------------------------------------------------

    async def _written(self, what: str, sent: Mapping[str, Any], call: Awaitable[Object]) -> Object:
        def check(found: Object) -> None:
            shapes.check(found, shapes.SLICE)
            for path in (("metadata", "name"), ("spec", "driver")):
                ours, theirs = sent[path[0]].get(path[1]), found[path[0]].get(path[1])
                if ours != theirs:
                    raise shapes.ShapeError(f"{'.'.join(path)} must be {ours!r} as it was sent, this is {theirs!r}")

        return await self._asked(f"{what} {sent['metadata']['name']}", call, check)

    async def _object(self, what: str, call: Awaitable[Object], shape: object) -> Object:
        return await self._asked(what, call, lambda found: shapes.check(found, shape))

    async def _asked(self, what: str, call: Awaitable[_T], check: Callable[[_T], None]) -> _T:
        try:
            found = await call
            try:
                check(found)
            except shapes.ShapeError as error:
                raise OddAnswerError(what, str(error)) from None
        except OddAnswerError as error:
            self._tell(what, error)
            raise
        self._right(what)
        return found

    def _check_event(self, what: str, event: WatchEvent) -> None:
        try:
            if event.kind not in _KINDS:
                raise shapes.ShapeError(f"type must be one of {', '.join(_KINDS)}, this is {event.kind!r:.60}")
            shapes.check(event.item, shapes.BOOKMARK if event.kind == "BOOKMARK" else shapes.SLICE, "object")
        except shapes.ShapeError as error:
            raise OddAnswerError(what, str(error)) from None
        self._right(what)

    def _tell(self, what: str, error: OddAnswerError) -> None:
        kind = " ".join(what.split()[:2])
        if kind not in self._odd:
            self._odd.add(kind)
            logger.error("%s", error)

    def _right(self, what: str) -> None:
        if self._odd:
            kind = " ".join(what.split()[:2])
            if kind in self._odd:
                self._odd.discard(kind)
                logger.info("%s: the answers of the API server are right again", kind)
