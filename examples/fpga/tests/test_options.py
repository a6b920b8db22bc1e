"""Options: bad ones are one sentence, and what kdp itself makes of the backend."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kdp
from kdp.testing import SysfsTree
from kdp_fpga import Fpga


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "afu"}, "mode='afu': must be one of af, region, regiondevel; for example mode=af"),
        ({"max_temperature": -1.0}, "max_temperature=-1: must be degrees Celsius between 0 and 200"),
        ({"max_temperature": float("nan")}, "max_temperature=nan: must be degrees Celsius between 0 and 200"),
        ({"clear_temperature": 70.0}, "clear_temperature=70 without max_temperature"),
        ({"max_temperature": 70.0, "clear_temperature": 70.0}, "clear_temperature=70 is not below max_temperature=70"),
        ({"ignored_errors": ("fme_error",)}, "'fme_error' is not an error register; did you mean fme_errors?"),
        (
            {"programmer": "/x"},
            "programmer='/x' with mode=af: boards are programmed for a container in mode=region only",
        ),
        ({"mode": "region", "programmer": "x"}, "host path 'x'"),
    ],
)
def test_a_bad_option_is_one_sentence(sysfs_tree: SysfsTree, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kdp.KdpError, match=re.escape(sentence)) as caught:
        Fpga(sysfs_tree.host, **options)

    assert "\n" not in str(caught.value)


def test_it_says_what_its_container_needs_of_the_node(sysfs_tree: SysfsTree) -> None:
    needs = Fpga(sysfs_tree.host).needs()
    assert needs.host_paths == ("/dev", "/sys")
    assert "feature.node.kubernetes.io/pci-1200_8086.present=true" in needs.node_labels
