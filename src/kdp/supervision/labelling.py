"""What labels a backend wants its node to have: asked of its hook ``labels`` when its devices changed, and checked.

If the hook fails or hangs, the previous labels stay: a node's pods were placed by them, and its hardware is most
likely what it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import anyio
import attrs

from ..concurrency.observable import Observable
from ..errors import HookError, printable, sentence
from ..model.labels import checked_labels

if TYPE_CHECKING:
    from ..model.backend import DeviceBackend
    from ..model.devices import Device
    from .hooks import Hooks
    from .publisher import DiscoveryPublisher

logger = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between the starts of two calls: devices that come and go are told together."""

RETRY_AFTER: Final = 10.0
"""Seconds after which a hook that failed is called again."""

MOST_MISTAKES: Final = 100
"""Mistakes that are remembered, so that each is told one time."""

_LONGEST: Final = 400
"""Characters of a mistake."""


@final
@attrs.frozen(kw_only=True)
class NodeLabels:
    """The labels that one backend wants.

    Attributes:
        values: By name; None: nobody knows yet. Empty: it wants none.
        problem: What is wrong with the hook, or with what it returned; None: nothing.
    """

    values: Mapping[str, str] | None = None
    problem: str | None = None


@final
class Labelling:
    """The labels that one backend wants, followed.

    Args:
        label: What texts call the backend.

    Attributes:
        newest: The newest `NodeLabels`.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._told: set[str] = set()
        self.newest = Observable(NodeLabels())

    def take(self, found: Any) -> NodeLabels:
        """Return what a hook returned, checked; each new mistake is logged.

        Raises:
            InvalidValueError: It is no mapping.
        """
        values, wrong = checked_labels(found)
        mistakes = [f"labels() of {self._label}: {printable(each, _LONGEST)}" for each in wrong]
        for mistake in mistakes:
            if mistake not in self._told and len(self._told) < MOST_MISTAKES:
                self._told.add(mistake)
                logger.warning("%s; it is left out", mistake)
        return NodeLabels(values=values, problem=mistakes[0] if mistakes else None)

    def set(self, labels: NodeLabels) -> None:
        """Publish labels if they have changed."""
        if labels != self.newest.value:
            self.newest.set(labels)

    def withdraw(self) -> None:
        """Want none: the node has no such hardware."""
        self.set(NodeLabels(values={}))

    async def ask(
        self, hooks: Hooks, backend: DeviceBackend, devices: tuple[Device, ...], *, deadline: float
    ) -> NodeLabels:
        """Ask a backend for the labels of its devices; raises what `Hooks.call` does."""
        if "labels" in backend.unused_hooks:
            return NodeLabels(values={})
        found: NodeLabels = await hooks.call("labels", devices, deadline=deadline, then=self.take)
        return found

    async def follow(
        self, hooks: Hooks, publisher: DiscoveryPublisher, backend: DeviceBackend, *, deadline: float
    ) -> NoReturn:
        """Ask for labels whenever there are other devices than before, until the hook raises `NotReady`."""
        asked: tuple[Device, ...] | None = None
        logged = ""
        version = -1
        while True:
            await publisher.discovery.after(version)
            version = publisher.discovery.version
            while publisher.taken_at is not None and (devices := publisher.devices) != asked:
                started = time.monotonic()
                try:
                    self.set(await self.ask(hooks, backend, devices, deadline=deadline))
                except HookError as error:
                    problem = sentence(error)
                    if problem != logged:
                        logged = problem
                        logger.warning("%s: %s; the previous labels stay", hooks.label, problem)
                    self.set(attrs.evolve(self.newest.value, problem=problem))
                    await anyio.sleep(RETRY_AFTER)
                else:
                    asked, logged = devices, ""
                    await anyio.sleep(max(0.0, started + PAUSE - time.monotonic()))
