"""Saved claims of any content with the right digest are read or refused, and what is read serves all later steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from tests.fuzzing import as_bytes, damaged, fuzz, replaced

from kdp.cdi import CdiDevice, CdiEdits, CdiSpec
from kdp.dra.claims.cdi_specs import record_of
from kdp.dra.claims.checkpoint import Record, Store
from kdp.dra.claims.plan import check_free
from kdp.errors import CheckpointError, ClaimError, InvalidValueError
from kdp.supervision.claimed import FORMAT

from .claim_objects import claim
from .test_checkpoint import record

Figure = Callable[[str, float, str], None]

BODY: dict[str, Any] = json.loads(record().encode().partition(b"\n")[2])


def sealed(payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).hexdigest()
    return json.dumps({"format": FORMAT, "version": 1, "readable_by": 1, "sha256": digest}).encode() + b"\n" + payload


def use(found: Record) -> None:
    """Do with a record what the driver does."""
    assert Record.decode(found.encode()) == found
    assert hash(found.keys) is not None
    with suppress(ClaimError):
        check_free(found, [found, attrs.evolve(found, claim=claim(7))], {})
    for part in found.parts:
        with suppress(InvalidValueError):  # an amount that is none, as a claim may have it, too
            assert part.consumed is not None


def test_a_saved_claim_is_read_or_refused(figure: Figure) -> None:
    inputs = (replaced([BODY]).map(as_bytes) | damaged([as_bytes(BODY)])).map(sealed) | damaged([record().encode()])
    tried = fuzz("checkpoint", lambda data: use(Record.decode(data)), (CheckpointError,), inputs, examples=1000)
    figure("fuzzing: saved claims", tried, "inputs")


def test_a_directory_of_saved_claims_is_read(tmp_path: Path, figure: Figure) -> None:
    def look(data: bytes) -> None:
        (tmp_path / f"{record().claim.uid}.json").write_bytes(data)
        for found in Store(tmp_path).all():
            assert found.claim.uid == record().claim.uid
        for path in tmp_path.iterdir():
            path.unlink()

    tried = fuzz("checkpoint", look, (), replaced([BODY]).map(as_bytes).map(sealed), examples=200)
    figure("fuzzing: directories of saved claims", tried, "inputs")


def test_what_a_spec_tells_of_a_claim_is_understood_or_nothing(figure: Figure) -> None:
    body = {"claim": BODY["claim"], "parts": BODY["parts"]}

    def find(data: bytes) -> None:
        annotations = {"widget.example.com/claim": data.decode(errors="replace")}
        device = CdiDevice(name="w", edits=CdiEdits(env=["A=1"]))
        found = record_of(CdiSpec(kind="widget.example.com/claim", devices=[device], annotations=annotations))
        if found is not None:
            use(found)

    tried = fuzz("claim_of_spec", find, (), replaced([body]).map(as_bytes) | damaged([as_bytes(body)]), examples=500)
    figure("fuzzing: claims in CDI specs", tried, "inputs")
