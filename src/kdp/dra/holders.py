"""`ClaimHolders`: which containers have the devices of claims, as the kubelet says.

A claim names no container, and its pods are known to the API server alone. The kubelet's pod-resources API has both, by
default since 1.34. It can be asked, not watched (contract section 10).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

import anyio

from ..errors import PodResourcesError, sentence
from ..kubelet.calls import HangWatch
from ..kubelet.list_guard import ListPostponedError
from ..kubelet.podresources import PodResources, SilentKubeletError
from .names import device_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ..kubelet.podresources import Holder

logger = logging.getLogger(__name__)

PERIOD: Final = 30.0
"""Seconds between two questions; as often as a device plugin asks."""

AGAIN: Final = 1.0
"""Seconds until a question is repeated that an Allocate has kept from being asked."""

FAILURES_BEFORE_WARNING: Final = 3
"""Number of failed questions in a row that is logged: a kubelet's restart costs one or two."""


@final
class ClaimHolders:
    """Asks one kubelet. Run `run` in a task group.

    Args:
        socket: The kubelet's pod-resources socket.
        pool: The pool of the node's devices.
        period: Seconds between two questions.
    """

    def __init__(self, socket: Path, pool: str, *, period: float = PERIOD) -> None:
        self._client = PodResources(socket)
        self._pool = pool
        self._period = period
        self._hang = HangWatch()
        self._failures = 0
        self._is_postponed = False
        self._claimed: Mapping[tuple[str, str, str], tuple[Holder, ...]] | None = None

    def of(self, driver: str, ids: Iterable[str]) -> tuple[tuple[str, Holder], ...] | None:
        """Return the containers that have a driver's devices, as of the last answer; None: there was none.

        Args:
            driver: The driver's name.
            ids: The ids of its devices.
        """
        claimed = self._claimed
        if claimed is None:
            return None
        return tuple(
            (device_id, holder)
            for device_id in ids
            for holder in claimed.get((driver, self._pool, device_name(device_id)), ())
        )

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await self._ask()
            await anyio.sleep(min(AGAIN, self._period) if self._is_postponed else self._period)

    async def _ask(self) -> None:
        try:
            async with self._client.connect() as calls:
                self._claimed = await calls.claimed()
        except ListPostponedError as error:
            if not self._is_postponed:
                logger.warning("%s; kdp tries again each second", sentence(error))
            self._is_postponed = True
            return
        except PodResourcesError as error:
            self._hang.note(is_silent=isinstance(error, SilentKubeletError))
            self._failures += 1
            if self._failures == FAILURES_BEFORE_WARNING:
                logger.warning("%s: no metric names the pods of claims; mount %s", sentence(error), self._client.socket)
            return
        self._hang.note(is_silent=False)
        self._is_postponed = False
        if self._failures >= FAILURES_BEFORE_WARNING:
            logger.info("the kubelet's pod-resources API answers again")
        self._failures = 0
