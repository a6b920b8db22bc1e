"""Why a selector matches no device, as its plain comparisons show it; what has alternatives is not judged."""

from __future__ import annotations

from typing import Any

import pytest

from kdp.admin.doctor.selectors import fault_of

DRIVER = "w.example.com"
SLICE: Any = {
    "spec": {
        "driver": DRIVER,
        "devices": [
            {
                "name": "w0",
                "attributes": {"model": {"string": "a"}, "cores": {"int": 4}, "ecc": {"bool": True}},
                "capacity": {"memory": {"value": "8Gi"}},
            },
            {"name": "w1", "attributes": {"model": {"string": "b"}, "dra.example.com/numa": {"int": 0}}},
        ],
    }
}
MODEL = f'device.attributes["{DRIVER}"].model'


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f'{MODEL} == "a"', ""),
        (f"device.driver == '{DRIVER}' && {MODEL} == 'b'", ""),
        (f'{MODEL} == "c"', f'no device here has {DRIVER}/model == "c"; there are "a", "b"'),
        (f'device.attributes["{DRIVER}"].cores == 8', f"no device here has {DRIVER}/cores == 8; there are 4"),
        (f'device.attributes["{DRIVER}"].ecc == false', f"no device here has {DRIVER}/ecc == false; there are true"),
        (
            f'device.attributes["{DRIVER}"].modle == "a"',
            f"no device here has the attribute {DRIVER}/modle; did you mean",
        ),
        (f'device.attributes["{DRIVER}"]["modle"] == "a"', "has the attribute"),
        (f'device.attributes["dra.example.com"].numa == 0 && {MODEL} == "a"', ""),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('1Gi')) >= 0", ""),
        (f"device.capacity['{DRIVER}'].memroy.compareTo(quantity('1Gi')) >= 0", f"the capacity {DRIVER}/memroy; did"),
        (
            'device.driver == "v.example.com"',
            f"no device here is of the driver v.example.com; there are those of {DRIVER}",
        ),
        (f'{MODEL} == "c" || device.driver == "x"', ""),
        (f'!({MODEL} == "c")', ""),
        (f'{MODEL} != "c"', ""),
        ("", ""),
        ("device.attributes[", ""),
    ],
)
def test_each_expression(expression: str, said: str) -> None:
    fault = fault_of([expression], [SLICE])
    assert (said in fault) if said else not fault, fault


def test_without_devices_only_names_are_known_to_be_missing() -> None:
    assert fault_of(['device.driver == "x"'], []) == ""
    assert fault_of([f'{MODEL} == "c"'], [{"spec": 3}, {"spec": {"devices": [7]}}]).startswith("no device here has the")
