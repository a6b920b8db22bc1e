"""The RPCs that the kubelet calls on a DRA driver: gRPC on one side, `Preparer` and `HealthStreams` on the other.

Both versions of DRAPlugin are one implementation: they are the same bytes, but for the shares that only v1 has. What
goes wrong with a claim is in the answer; a status of gRPC would be "unrelated to any claim", and all of them would be
asked for again. Answers are made in one order, so that equal answers are equal bytes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from ..errors import MAX_SENTENCE_BYTES, within_bytes
from ..model.claims import Claim
from ..proto import dra_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from ..kubelet.calls import CallCounts
    from .claims.prepare import JobOutcome, Preparer
    from .health import HealthStreams

    _Context = grpc.aio.ServicerContext[Any, Any]


def versions(*, health: bool) -> tuple[str, ...]:
    """Return the services as they are announced: of DRAPlugin a kubelet takes the first that it knows."""
    of_health = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth") if health else ()
    return ("v1.DRAPlugin", "v1beta1.DRAPlugin", *of_health)


def handlers(
    driver: str, preparer: Preparer, streams: HealthStreams, calls: CallCounts
) -> list[grpc.GenericRpcHandler]:
    """Return the services of one driver for a gRPC server: claims and health.

    Args:
        driver: The driver's name.
        preparer: Does it.
        streams: Tells the health.
        calls: Where the calls are counted.
    """

    async def counted(method: str, work: Awaitable[dict[str, JobOutcome]]) -> dict[str, JobOutcome]:
        began, result = time.monotonic(), "failed"
        try:
            outcomes = await work
            result = "failed" if any(each.error for each in outcomes.values()) else "ok"
            return outcomes
        finally:
            calls.called(method, driver, result, time.monotonic() - began)

    async def prepare(claims: Sequence[Claim], _: _Context) -> dict[str, JobOutcome]:
        return await counted("NodePrepareResources", preparer.prepare(claims))

    async def unprepare(claims: Sequence[Claim], _: _Context) -> dict[str, JobOutcome]:
        return await counted("NodeUnprepareResources", preparer.unprepare(claims))

    plugins = [
        grpc.method_handlers_generic_handler(
            f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin",
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    prepare, decode_claims, partial(encode_prepared, with_shares=version == "v1")
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    unprepare, decode_claims, encode_unprepared
                ),
            },
        )
        for version in ("v1", "v1beta1")
    ]
    health = [
        grpc.method_handlers_generic_handler(
            f"{version}.DRAResourceHealth",
            {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(streams.stream, lambda _: None)},
        )
        for version in ("v1", "v1alpha1")
    ]
    return [*plugins, *health]


# -- messages ----------------------------------------------------------------------------------------------------------


def decode_claims(data: bytes) -> list[Claim]:
    """Return the claims of a NodePrepareResourcesRequest, or of a NodeUnprepareResourcesRequest: it is the same."""
    claims = pb.NodePrepareResourcesRequest.FromString(data).claims
    return [Claim(namespace=each.namespace, name=each.name, uid=each.uid) for each in claims]


def encode_prepared(outcomes: Mapping[str, JobOutcome], *, with_shares: bool = True) -> bytes:
    """Return a NodePrepareResourcesResponse, of v1 with shares, of v1beta1 without."""
    reply = pb.NodePrepareResourcesResponse()
    for uid, outcome in outcomes.items():
        found = reply.claims[uid]
        found.error = within_bytes(outcome.error, MAX_SENTENCE_BYTES)
        for device in outcome.devices:
            found.devices.add(
                request_names=[device.base],
                pool_name=device.pool,
                device_name=device.name,
                cdi_device_ids=device.cdi_ids,
                share_id=device.share_id if with_shares and device.share_id else None,
            )
    return reply.SerializeToString(deterministic=True)


def encode_unprepared(outcomes: Mapping[str, JobOutcome]) -> bytes:
    """Return a NodeUnprepareResourcesResponse, of both versions."""
    reply = pb.NodeUnprepareResourcesResponse()
    for uid, outcome in outcomes.items():
        reply.claims[uid].error = within_bytes(outcome.error, MAX_SENTENCE_BYTES)
    return reply.SerializeToString(deterministic=True)
