"""The RPCs that the kubelet calls on a DRA driver: gRPC on one side, `Preparer` and `HealthStreams` on the other.

Both versions of DRAPlugin are one implementation. What goes wrong with a claim is in the answer; a status of gRPC would
be "unrelated to any claim", and all of them would be asked for again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from . import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from ..kubelet.calls import CallCounts
    from ..model.claims import Claim
    from .claims.jobs import JobOutcome
    from .claims.prepare import Preparer
    from .health import HealthStreams

    _Context = grpc.aio.ServicerContext[Any, Any]


def versions(*, health: bool) -> tuple[str, ...]:
    """Return the services as they are announced: of DRAPlugin a kubelet takes the first that it knows."""
    of_health = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth") if health else ()
    return ("v1.DRAPlugin", "v1beta1.DRAPlugin", *of_health)


class DraServicer:
    """Serves the claims and the health of one driver.

    Args:
        driver: The driver's name.
        preparer: Does it.
        streams: Tells the health.
        calls: Where the calls are counted.
    """

    def __init__(self, driver: str, preparer: Preparer, streams: HealthStreams, calls: CallCounts) -> None:
        self._driver = driver
        self._calls = calls
        self._preparer = preparer
        self._streams = streams

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the services for a gRPC server."""
        encoders = {"v1": wire.encode_prepared, "v1beta1": wire.encode_prepared_without_shares}
        plugins = [
            grpc.method_handlers_generic_handler(
                f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin",
                {
                    "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                        self._prepare, wire.decode_prepare, encode
                    ),
                    "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                        self._unprepare, wire.decode_unprepare, wire.encode_unprepared
                    ),
                },
            )
            for version, encode in encoders.items()
        ]
        health = [
            grpc.method_handlers_generic_handler(
                f"{version}.DRAResourceHealth",
                {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(self._streams.stream, wire.decode_nothing)},
            )
            for version in ("v1", "v1alpha1")
        ]
        return [*plugins, *health]

    async def _prepare(self, claims: Sequence[Claim], _: _Context) -> dict[str, JobOutcome]:
        return await self._counted("NodePrepareResources", self._preparer.prepare(claims))

    async def _unprepare(self, claims: Sequence[Claim], _: _Context) -> dict[str, JobOutcome]:
        return await self._counted("NodeUnprepareResources", self._preparer.unprepare(claims))

    async def _counted(self, method: str, work: Awaitable[dict[str, JobOutcome]]) -> dict[str, JobOutcome]:
        began, result = time.monotonic(), "failed"
        try:
            outcomes = await work
            result = "failed" if any(each.error for each in outcomes.values()) else "ok"
            return outcomes
        finally:
            self._calls.called(method, self._driver, result, time.monotonic() - began)
