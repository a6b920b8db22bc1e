from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp import BindingConditions, NetworkData, Quantity, RequestPolicy, Taint
from kdp.errors import InvalidValueError

from ..strategies import effort


def test_a_taint_keeps_new_claims_away_unless_it_says_otherwise() -> None:
    assert Taint(key="example.com/worn") == Taint(key="example.com/worn", effect="NoSchedule", value="")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "Example.com/x"}, "^label name 'Example.com/x'"),
        ({"key": None}, "^label name None"),
        ({"key": "x", "value": "a b"}, "^label value 'a b'"),
        (
            {"key": "x", "effect": "Evict"},
            "^taint effect 'Evict': must be one of NoSchedule, NoExecute, None; for example 'NoSchedule'$",
        ),
    ],
)
def test_wrong_taints_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Taint(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"default": Quantity("1Gi"), "valid_values": [Quantity("1Gi"), Quantity("2Gi")]},
        {"default": 3, "min": 1, "max": 9, "step": 2},
        {"default": Quantity("1500m"), "valid_values": [Quantity("500m"), Quantity("1500m")]},
    ],
)
def test_what_a_claim_may_ask_for(arguments: dict[str, Any]) -> None:
    policy = RequestPolicy(**arguments)
    policy.check_within(Quantity("80Gi"), "memory")
    assert attrs.evolve(policy) == policy
    hash(policy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"^request policy: it is empty; for example kdp.RequestPolicy\(default=1\)$"),
        ({"default": 1, "valid_values": [1], "min": 1}, "exclude each other"),
        ({"valid_values": [1]}, "default must be given with valid_values and with min"),
        ({"default": 1, "max": 1}, "min must be given with max and step"),
        ({"default": 3, "valid_values": [1, 2]}, "default 3 must be one of valid_values"),
        ({"default": 1, "valid_values": [2, 1]}, "valid_values must grow"),
        ({"default": 1, "valid_values": range(1, 12)}, "valid_values has 11 amounts; at most 10 are allowed"),
        ({"default": 1, "min": 2}, "default 1 must not be below min 2"),
        ({"default": 1, "min": 1, "step": 0}, "step 0 must be above 0"),
        ({"default": 2, "min": 1, "step": 2}, "default 2 must be min 1 plus a multiple of step 2"),
        ({"default": -1, "min": -1}, "min -1 must be 0 or more"),
        ({"default": 1, "min": 0, "step": Quantity("250m")}, "step 250m must be a whole number: API servers"),
        ({"default": True}, "request policy: amount=True: must be int or kdp.Quantity"),
    ],
)
def test_wrong_request_policies_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        RequestPolicy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"default": 11}, "^bandwidth: default 11 must not be more than its capacity 10$"),
        ({"default": 1, "min": 1, "max": 11}, "max 11 must not"),
        ({"default": 9, "min": 9, "step": 2}, "^bandwidth: min 9 plus step 2 must not"),
    ],
)
def test_nobody_may_ask_for_more_than_there_is(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        RequestPolicy(**arguments).check_within(10, "bandwidth")


@effort(200)
@given(st.integers(0, 20), st.integers(-3, 20), st.none() | st.integers(0, 20), st.none() | st.integers(-2, 6))
def test_a_range_is_taken_exactly_if_its_default_lies_in_it(
    least: int, default: int, most: int | None, step: int
) -> None:
    bounds = [default] if most is None else [default, most]
    fits = (
        least <= default
        and (most is None or default <= most)
        and (step is None or (step > 0 and all((bound - least) % step == 0 for bound in bounds)))
    )
    try:
        RequestPolicy(default=default, min=least, max=most, step=step)
    except InvalidValueError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    ("conditions", "failures", "message"),
    [
        ([], ["f"], r"^binding conditions \[\]: must be 1 to 4 of each kind, this is 0$"),
        (["a", "b", "c", "d", "e"], ["f"], "this is 5"),
        (["a"], ["a"], "^binding condition 'a': is named twice"),
        (["a b"], ["f"], "^label name 'a b'"),
    ],
)
def test_wrong_binding_conditions_are_refused(conditions: Any, failures: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        BindingConditions(conditions=conditions, failure_conditions=failures)


def test_network_data_has_each_address_once_as_the_api_writes_it() -> None:
    data = NetworkData(ips=["2001:DB8:0::5/64", "192.0.2.5/24", "192.0.2.5/24"])
    assert data.ips == ("2001:db8::5/64", "192.0.2.5/24")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"^network data: it is empty; for example kdp.NetworkData\(interface_name='eth1'\)$"),
        ({"interface_name": "x" * 257}, "^network data: interface_name 'x+': must have at most 256 bytes$"),
        ({"ips": "192.0.2.5/24"}, r"^network data: ips '192.0.2.5/24': must be several texts, not one"),
        ({"ips": ["192.0.2.5"]}, "^network data: ip '192.0.2.5': must be an address with the length of its prefix"),
        ({"ips": ["192.0.2.5/33"]}, "^network data: ip '192.0.2.5/33'"),
        ({"ips": [f"192.0.2.{n}/24" for n in range(17)]}, "^network data: 17 ips; at most 16 are allowed$"),
    ],
)
def test_wrong_network_data_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        NetworkData(**arguments)
