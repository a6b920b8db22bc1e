"""The page and the pod say what the class does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import yaml

from kdp_fpga import Fpga
from kdp_testkit.pytest_plugin import NodeFrom

HERE = Path(__file__).parents[1]
PAGE = (HERE.parents[1] / "docs/backends/fpga.md").read_text()


def test_the_page_has_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", PAGE.partition("## Options")[2], re.MULTILINE))
    options = {**inspect.signature(Fpga).parameters}
    del options["host"]

    assert rows.keys() == options.keys()
    for name, option in options.items():
        said = rows[name].partition(":")[0].strip("` ")
        default = option.default
        assert said == {None: "none", (): "none", False: "false", True: "true"}.get(default, default), name


def test_the_pod_asks_for_what_the_recorded_node_has(node_from: NodeFrom) -> None:
    pod = yaml.safe_load((HERE / "pod.yaml").read_text())
    node = node_from(HERE / "tests/data/dfl-6.1.tar.gz")

    limits = pod["spec"]["containers"][0]["resources"]["limits"]

    assert limits.keys() & {device.resource for device in Fpga(node.host).discover()}
    assert {"cpu", "memory"} <= limits.keys()
