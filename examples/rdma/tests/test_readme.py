"""What the page and the manifests claim. The page's blocks are run by tests/docs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import yaml

import kdp.hardware
from kdp_rdma import Rdma

HERE = Path(__file__).parents[1]
PAGE = (HERE.parents[1] / "docs/backends/rdma.md").read_text()


def _load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((HERE / name).read_text()))


def test_the_page_has_every_option_with_its_default() -> None:
    section = PAGE.partition("## Options")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    told = {name: default for names, _, default in rows for name in re.findall(r"`(\w+)`", names)}
    parameters = {name: p for name, p in inspect.signature(Rdma).parameters.items() if name != "host"}
    assert told.keys() == parameters.keys()
    fixed = {name: str(p.default).lower() for name, p in parameters.items() if p.default is not None}
    assert {name: told[name].strip("`") for name in fixed} == fixed


def test_the_pod_asks_for_what_the_daemonset_offers(tmp_path: Path) -> None:
    (plugin,) = _load("manifests/daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    (container,) = _load("pod.yaml")["spec"]["containers"]
    assert "--set=mode=hca" in plugin["args"]
    assert {*Rdma(kdp.hardware.Host(tmp_path), mode="hca").resources} <= container["resources"]["limits"].keys()
