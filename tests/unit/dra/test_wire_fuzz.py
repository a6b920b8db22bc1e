"""Requests for claims, damaged: protobuf refuses them, or they have claims, and each claim gets its own answer."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError
from tests.fuzzing import damaged, fuzz

from kdp.dra import servicer
from kdp.dra.claims.prepare import JobOutcome
from kdp.proto import dra_v1_pb2 as pb

Figure = Callable[[str, float, str], None]

CLAIMS = [pb.Claim(namespace="default", name="c", uid="u"), pb.Claim(uid=".."), pb.Claim(namespace="ü\0", uid="a/b")]


def test_a_request_for_claims_is_decoded_or_refused(figure: Figure) -> None:
    def decode(data: bytes) -> None:
        outcomes = {claim.uid: JobOutcome(error="no") for claim in servicer.decode_claims(data)}
        assert servicer.encode_prepared(outcomes) is not None
        assert servicer.encode_unprepared(outcomes) is not None

    seeds = [pb.NodePrepareResourcesRequest(claims=CLAIMS[:count]).SerializeToString() for count in (1, 2, 3)]
    tried = fuzz("claims_wire", decode, (DecodeError,), damaged(seeds), examples=1000)
    figure("fuzzing: requests for claims", tried, "inputs")
