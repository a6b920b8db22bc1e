"""`PodsWatch`: which pods of the node run, as the kubelet says (the pods API, contract section 10).

From Kubernetes 1.37 on the kubelet can be watched. A pod's end is a reason to ask the pod-resources API, which has
the devices. As long as all holders run, there is no reason. An end in this API proves nothing: containers may still run
after a forced deletion of their pod.

The API says one thing more that no other does: whether the kubelet has heard of all its pods yet. Until then a missing
pod may still be there.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, final

import anyio
import grpc

from ..concurrency.backoff import Backoff
from ..concurrency.observable import Observable
from ..proto import pods_v1alpha1_pb2 as pb
from .server import open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

SLOWEST_TRY = 60.0
"""Seconds between two tries where nobody serves the API."""


_ENDED: Final = frozenset(["Succeeded", "Failed"])
"""Phases of a pod without a running container."""

_LENGTHS: Final = {1: 8, 5: 4}
"""Bytes of a value by its wire type."""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of a serialized message's strings and messages, and skip its other fields.

    The message of a pod has a thousand classes; two of its strings matter here.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 2:
            length = varint()
            yield number, message[at : at + length]
            at += length
        elif wire_type == 0:
            varint()
        else:
            at += _LENGTHS[wire_type]


def _told_of(pod: bytes) -> tuple[tuple[str, str], str, str]:
    """Return namespace and name of a serialized core/v1 Pod, its UID, and its phase."""
    parts = dict(_fields(pod))
    metadata, status = dict(_fields(parts.get(1, b""))), dict(_fields(parts.get(3, b"")))
    namespace, name, uid, phase = (
        each.decode(errors="replace")
        for each in (metadata.get(3, b""), metadata.get(1, b""), metadata.get(5, b""), status.get(1, b""))
    )
    return (namespace, name), uid, phase


@final
class PodsWatch:
    """Watch the pods of this node. Run `run` in a task group while word of them is of use.

    Args:
        socket: The pods API's path; older kubelets have none.

    Attributes:
        is_synced: Whether the kubelet that is watched now has told that it knows all its pods.
        running: Namespace and name of each pod that has not ended, with its UID; complete while ``is_synced``.
        changes: Its version grows whenever a pod has ended, or ``is_synced`` has changed.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.is_synced = False
        self.running: dict[tuple[str, str], str] = {}
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
            except (IndexError, KeyError):
                logger.debug("the kubelet's pods API: a pod that cannot be read")
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
            self.running.clear()
            try:
                async for event in call:
                    if event.type == pb.INITIAL_SYNC_COMPLETE:
                        backoff.reset()
                        self._set_synced(True)
                    else:
                        self._take(event)
                    if not is_wanted():
                        return
            finally:
                call.cancel()

    def _take(self, event: pb.WatchPodsEvent) -> None:
        pod, uid, phase = _told_of(event.pod)
        if event.type != pb.DELETED and phase not in _ENDED:
            self.running[pod] = uid
            return
        if self.running.get(pod) == uid:  # else another pod has its name by now
            del self.running[pod]
        if self.is_synced:
            self.changes.set(None)

    def _set_synced(self, is_synced: bool) -> None:
        if is_synced != self.is_synced:
            self.is_synced = is_synced
            self.changes.set(None)
