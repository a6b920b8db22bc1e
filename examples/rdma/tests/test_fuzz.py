"""Configurations of the two Go plugins by anybody: a configuration, or a `kdp.ConfigurationError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from tests.fuzzing import as_bytes, damaged, fuzz, replaced

import kdp
from kdp_rdma.config import Mode, read

SHARED: dict[str, Any] = {
    "periodicUpdateInterval": 300,
    "configList": [
        {"resourceName": "a", "resourcePrefix": "example.com", "rdmaHcaMax": 1000, "devices": ["ib0"]},
        {
            "resourceName": "b",
            "rdmaHcaMax": 5,
            "selectors": {
                "vendors": ["15b3"],
                "deviceIDs": ["1017"],
                "ifNames": ["ib3"],
                "drivers": [],
                "linkTypes": None,
            },
        },
    ],
}
SRIOV: dict[str, Any] = {
    "resourceList": [
        {"resourceName": "v", "selectors": {"vendors": ["15b3"], "isRdma": True, "pfNames": ["ib0#0-3,5"]}},
        {"resourceName": "w", "deviceType": "netDevice", "selectors": [{"pciAddresses": ["0000:3b:00.1"]}]},
    ]
}


def test_a_configuration_is_understood_or_refused(record_property: Callable[[str, object], None]) -> None:
    def understand(data: bytes) -> None:
        refused = 0
        for mode in get_args(Mode):
            try:
                read(data.decode(errors="replace"), "f", mode, None)
            except kdp.ConfigurationError:
                refused += 1
        assert refused <= len(get_args(Mode))

    inputs = replaced([SHARED, SRIOV]).map(as_bytes) | damaged([as_bytes(SHARED), as_bytes(SRIOV)])
    tried = fuzz("rdma", understand, (), inputs, examples=500)
    record_property("figure", f"fuzzing: configurations of rdma: {tried} inputs")
