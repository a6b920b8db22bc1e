"""The kubelet's messages to a DRA driver, as values, and back: the only module that does it.

v1 and v1beta1 are the same bytes, but for the shares that only v1 has; the two versions of health are the same bytes.
Answers are made in one order, so that equal answers are equal bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..errors import MAX_SENTENCE_BYTES, within_bytes
from ..model.claims import Claim
from ..proto.dra.v1 import api_pb2 as pb
from ..proto.drahealth.v1 import api_pb2 as health_pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .claims.jobs import JobOutcome

MAX_MESSAGE_BYTES = 1024
"""Of a device's health; a kubelet cuts what is longer in the middle of a letter (DRA contract section 2.6)."""


@attrs.frozen(kw_only=True)
class DeviceReport:
    """One device's health.

    Attributes:
        name: The device's name in the API.
        is_healthy: Whether it is.
        message: Why it is not; "": it is.
    """

    name: str
    is_healthy: bool
    message: str = ""


def decode_prepare(data: bytes) -> list[Claim]:
    """Return the claims of a NodePrepareResourcesRequest."""
    return _claims(pb.NodePrepareResourcesRequest.FromString(data).claims)


def decode_unprepare(data: bytes) -> list[Claim]:
    """Return the claims of a NodeUnprepareResourcesRequest."""
    return _claims(pb.NodeUnprepareResourcesRequest.FromString(data).claims)


def _claims(claims: Iterable[pb.Claim]) -> list[Claim]:
    return [Claim(namespace=each.namespace, name=each.name, uid=each.uid) for each in claims]


def encode_prepared(outcomes: Mapping[str, JobOutcome]) -> bytes:
    """Return a NodePrepareResourcesResponse of v1."""
    return _prepared(outcomes, with_shares=True)


def encode_prepared_without_shares(outcomes: Mapping[str, JobOutcome]) -> bytes:
    """Return a NodePrepareResourcesResponse of v1beta1."""
    return _prepared(outcomes, with_shares=False)


def _prepared(outcomes: Mapping[str, JobOutcome], *, with_shares: bool) -> bytes:
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


def encode_health(pool: str, devices: Iterable[DeviceReport], *, at: int, timeout: int) -> bytes:
    """Return a NodeWatchResourcesResponse.

    Args:
        pool: The pool's name.
        devices: All devices.
        at: Since when it is so, in seconds since 1970.
        timeout: Seconds after which the kubelet must not believe it any more.
    """
    reply = health_pb.NodeWatchResourcesResponse()
    for device in devices:
        reply.devices.add(
            device=health_pb.DeviceIdentifier(pool_name=pool, device_name=device.name),
            health=health_pb.HEALTHY if device.is_healthy else health_pb.UNHEALTHY,
            last_updated_time=at,
            health_check_timeout_seconds=timeout,
            message=within_bytes(device.message, MAX_MESSAGE_BYTES),
        )
    return reply.SerializeToString()


def decode_nothing(data: bytes) -> None:
    """Take a request without fields."""
