"""`PodsWatch`: word from the kubelet that something happened to a pod (the pods API, contract section 10).

From Kubernetes 1.37 on the kubelet can be watched. What it says of pods is not looked at: that something happened is a
reason to ask the pod-resources API, which alone knows of devices. And it says one thing more that nobody else does:
whether the kubelet has heard of all its pods yet. Until then a missing pod may still be there.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, final

import anyio
import grpc

from ..concurrency.backoff import Backoff
from ..concurrency.observable import Observable
from ..proto import pods_v1alpha1_pb2 as pb
from .server import open_channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

SLOWEST_TRY = 60.0
"""Seconds between two tries where nobody serves the API."""


@final
class PodsWatch:
    """Watch the pods of this node. Run `run` in a task group while word of them is of use.

    Args:
        socket: The pods API's path; older kubelets have none.

    Attributes:
        is_synced: Whether the kubelet that is watched now has told that it knows all its pods.
        changes: Its version grows whenever a pod has changed, or ``is_synced`` has.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.is_synced = False
        self.changes: Observable[None] = Observable(None)

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Watch until nobody wants it any more; looked at after each event and each try."""
        backoff = Backoff(first=1.0, most=SLOWEST_TRY)
        while is_wanted():
            if not os.path.exists(self._socket):  # noqa: ASYNC240 - raises nothing, also where a directory is closed
                await anyio.sleep(SLOWEST_TRY)
                continue
            try:
                await self._follow(is_wanted, backoff)
            except grpc.aio.AioRpcError as error:
                # "Initializing", too far behind, or the kubelet has ended: the next try tells.
                logger.debug("the kubelet's pods API: %s", error.details() or error.code().name)
            finally:
                self._set_synced(False)
            if is_wanted():
                await anyio.sleep(backoff.next())

    async def _follow(self, is_wanted: Callable[[], bool], backoff: Backoff) -> None:
        async with open_channel(self._socket) as channel:
            watch: grpc.aio.UnaryStreamMultiCallable[Any, Any] = channel.unary_stream(
                "/v1alpha1.Pods/WatchPods",
                request_serializer=pb.WatchPodsRequest.SerializeToString,
                response_deserializer=pb.WatchPodsEvent.FromString,
            )
            call = watch(pb.WatchPodsRequest())
            try:
                async for event in call:
                    if event.type == pb.INITIAL_SYNC_COMPLETE:
                        backoff.reset()
                        self._set_synced(True)
                    elif self.is_synced:
                        self.changes.set(None)
                    if not is_wanted():
                        return
            finally:
                call.cancel()

    def _set_synced(self, is_synced: bool) -> None:
        if is_synced != self.is_synced:
            self.is_synced = is_synced
            self.changes.set(None)
