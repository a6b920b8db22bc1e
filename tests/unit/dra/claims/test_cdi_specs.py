"""The names that a claim's devices have in CDI."""

from __future__ import annotations

from itertools import product

import kdp
from kdp.dra.claims.cdi_specs import render_part
from kdp.dra.claims.checkpoint import ClaimPart, Use
from kdp.hardware import Host
from kdp.model.claims import Claim

from .claim_objects import DRIVER, POOL, claim

EDITS = kdp.ContainerEdits(env={"WIDGET": "yes"})


def names(of: Claim, request: str, device: str, share: str, edits: kdp.ContainerEdits = EDITS) -> tuple[str, ...]:
    use = Use(request=request, pool=POOL, name=device, device_id=device, share_id=share, is_admin=False)
    part = ClaimPart(request=request, resource="example.com/widget", uses=(use,))
    device_of_use = kdp.Device(id=device, edits=edits)
    _, found = render_part(of, part, [device_of_use], edits, driver=DRIVER, host=Host(), joined_env=())
    return tuple(each.name for each in found)


def test_no_two_devices_of_claims_share_a_name() -> None:
    uses = list(product((claim(0), claim(1)), ("gpu", "gpu/large", "gpu-large"), ("w0", "w1"), ("", "s0", "s1")))
    found = [names(*use) for use in uses]

    assert len(set(found)) == len(uses)
    assert found == [names(*use) for use in uses]


def test_a_device_that_gives_nothing_has_no_name() -> None:
    assert names(claim(), "gpu", "w0", "", kdp.ContainerEdits()) == ()
