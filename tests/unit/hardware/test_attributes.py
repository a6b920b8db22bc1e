from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import kdp
from kdp.dra.publishing.slices import Limits, Pool, pool_slices
from kdp.hardware import attributes_of


def test_what_no_slice_can_carry_is_left_out() -> None:
    facts = {"fits": "x" * 64, "long": "x" * 65, "wide": "é" * 33, "control": "a\x07", "bytes": "\udcff"}
    assert attributes_of(facts) == {"fits": "x" * 64}
    assert attributes_of({"most": 2**63 - 1, "least": -(2**63), "more": 2**63}) == {
        "most": 2**63 - 1,
        "least": -(2**63),
    }


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.none() | st.integers() | st.text(), max_size=8))
def test_whatever_hardware_says_its_device_is_published(facts: dict[str, int | str | None]) -> None:
    device = kdp.Device(id="card-0", attributes=attributes_of(facts))
    slices = pool_slices([device], pool=Pool.of_node("example.com", "node-0"), limits=Limits.of("v1.37.1"), standard={})
    assert [each.body["devices"][0]["name"] for each in slices] == ["card-0"]
