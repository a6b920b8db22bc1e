from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.dra.claims.checkpoint import ClaimPart, Record, Use
from kdp.dra.claims.parameters import Parameters
from kdp.dra.claims.plan import check_free, plan_of
from kdp.dra.render import health_key
from kdp.errors import ClaimError
from kdp.supervision.given import Given
from kdp.supervision.holdings import Holding

from .claim_objects import DRIVER, POOL, claim, claim_object, entry, result


@attrs.frozen(kw_only=True)
class Mode:
    speed: int = 1


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"
    config = Mode

    @override
    def discover(self) -> list[kdp.Device]:
        return [*DEVICES.values()]


DEVICES = {
    each.id: each
    for each in (
        kdp.Device(id="w0"),
        kdp.Device(id="w1"),
        kdp.Device(id="GPU-8f"),
        kdp.Device(id="sick", health=kdp.Health.unhealthy("it smokes")),
        kdp.Device(id="shared", capacity={"memory": kdp.Quantity("80Gi")}, shareable=True),
        kdp.Device(id="other", resource="example.com/other"),
    )
}


def plan(results: Sequence[dict[str, Any]] | None, *config: dict[str, Any], uid: str | None = None) -> Record:
    return planned(results, *config, uid=uid)[0]


def planned(
    results: Sequence[dict[str, Any]] | None, *config: dict[str, Any], uid: str | None = None
) -> tuple[Record, Parameters]:
    item = claim_object(claim(), results, *config)
    item["metadata"]["uid"] = uid or claim().uid
    return plan_of(
        item,
        claim(),
        driver=DRIVER,
        pool=POOL,
        devices=DEVICES,
        backend=Widgets(),
    )


def mode(speed: int) -> dict[str, Any]:
    return {"apiVersion": f"{DRIVER}/v1", "kind": "Mode", "speed": speed}


def test_only_results_of_this_driver_count() -> None:
    found = plan([result("w0"), result("x0", driver="other.example.com", pool="elsewhere")])
    assert [use.device_id for use in found.uses] == ["w0"]
    assert plan([result("x0", driver="other.example.com")]).parts == ()


def test_each_request_is_one_call() -> None:
    found = plan([result("w1", "b"), result("w0", "a"), result("gpu-8f--uozjanfjaa", "b"), result("other", "a")])
    calls = [(part.request, part.resource, [use.device_id for use in part.uses]) for part in found.parts]
    assert calls == [
        ("b", "example.com/widget", ["w1", "GPU-8f"]),
        ("a", "example.com/widget", ["w0"]),
        ("a", "example.com/other", ["other"]),
    ]


def test_a_prioritised_list_has_parameters_by_both_names_and_is_told_by_its_base() -> None:
    entries = [entry(mode(2), "gpu", source="FromClass"), entry(mode(3), "gpu/small"), entry(mode(4), "gpu/large")]
    found, parameters = planned([result("w0", "gpu/large"), result("w1", "net")], *entries)
    assert [use.base for use in found.uses] == ["gpu", "net"]
    assert [parameters.of_request(part.request) for part in found.parts] == [Mode(speed=4), None]
    assert found.config == tuple(entries)


def test_shares_and_amounts() -> None:
    consumed = {f"{DRIVER}/memory": "10Gi", "foreign.example.com/x": "1"}
    found = plan(
        [
            result("shared", share="s1", consumedCapacity=consumed),
            result("shared", share="s2", consumedCapacity={"memory": "20Gi"}),
        ]
    )
    assert [part.share_id for part in found.parts] == [{"shared": "s1"}, {"shared": "s2"}], "two calls: one id each"
    assert found.parts[0].consumed == {
        "shared": {"memory": kdp.Quantity("10Gi"), "foreign.example.com/x": kdp.Quantity("1")}
    }
    assert found.parts[1].consumed == {"shared": {"memory": kdp.Quantity("20Gi")}}


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (None, "claim default/claim-0: is not allocated; the scheduler must do it first"),
        (
            [result("w0", pool="node1")],
            ("device w0 of pool node1: is gone; widget.example.com on this node has 6 devices in pool node0"),
        ),
        ([result("sick")], "device sick: is unhealthy: it smokes"),
        (
            [result("w0", "a"), result("w0", "b")],
            "device w0: is allocated to the requests a and b of the claim; a device can serve only one request",
        ),
        (
            [result("shared", share="s", consumedCapacity={"memory": "much"})],
            (
                "device shared: consumed capacity memory: quantity 'much': must be a number with a Kubernetes suffix; "
                "for example '80Gi'"
            ),
        ),
    ],
)
def test_what_cannot_be_given_is_a_sentence(results: list[dict[str, Any]] | None, sentence: str) -> None:
    with pytest.raises(ClaimError) as refused:
        plan(results)
    assert str(refused.value) == sentence


def test_a_claim_that_was_replaced_is_refused() -> None:
    with pytest.raises(ClaimError, match=r"^claim default/claim-0: was replaced, its UID is other and not 0000"):
        plan([result("w0")], uid="other")


def test_whoever_tolerates_it_gets_a_sick_device() -> None:
    key = health_key(DRIVER)
    for toleration in ({"key": key, "operator": "Exists"}, {"operator": "Exists"}, {"key": key, "value": ""}):
        assert plan([result("sick", tolerations=[toleration])]).uses
    assert plan([result("sick", admin=True)]).uses
    with pytest.raises(ClaimError):
        plan([result("sick", tolerations=[{"key": "example.com/worn", "operator": "Exists"}])])


def use(device: str, *, share: str = "", admin: bool = False) -> Use:
    return Use(request="r", pool=POOL, name=device, device_id=device, share_id=share, is_admin=admin)


@pytest.mark.parametrize(
    ("mine", "theirs", "is_free"),
    [
        (use("w0"), use("w0"), False),
        (use("w0", admin=True), use("w0"), True),
        (use("w0", share="a"), use("w0", share="b"), True),
        (use("w0", share="a"), use("w0", share="a"), False),
        (use("w0", share="a"), use("w0"), False),
    ],
)
def test_nobody_gets_what_another_claim_has(mine: Use, theirs: Use, is_free: bool) -> None:
    one, other = (
        Record(claim=claim(number), parts=(ClaimPart(request="r", resource="example.com/widget", uses=(each,)),))
        for number, each in enumerate((mine, theirs))
    )
    if is_free:
        check_free(one, [one, other], {})
    else:
        with pytest.raises(
            ClaimError, match=rf"^device w0: is already prepared for claim default/claim-1 \({claim(1).uid}\)"
        ):
            check_free(one, [one, other], {})


def test_a_device_that_another_claim_has_under_another_name_was_prepared() -> None:
    given = Given(reach={"/dev/w0": ()})
    holding = Holding(name=(DRIVER, "old"), given=given, holder="claim default/train-0")
    record = Record(claim=claim(0), parts=(ClaimPart(request="r", resource="example.com/widget", uses=(use("w0"),)),))
    with pytest.raises(ClaimError, match=f"^device w0: is held as old of {DRIVER} by claim default/train-0; "):
        check_free(record, [record], {"w0": holding})
    admin = attrs.evolve(
        record, parts=(ClaimPart(request="r", resource="example.com/widget", uses=(use("w0", admin=True),)),)
    )
    check_free(admin, [admin], {"w0": holding})
