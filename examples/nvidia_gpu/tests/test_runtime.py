"""CDI specs of anybody: what is none names no device, and keeps nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdp.testing import SysfsTree
from kdp_nvidia_gpu.runtime import CdiNames

SPEC = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: all\n"
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    ["[]", "kind: [a]\ndevices: [{name: [a]}]", f"{ALIASES}kind: *i\ndevices: [{{name: *i}}]"],
)
def test_a_file_that_is_no_spec_names_no_device(tmp_path: Path, text: str) -> None:
    tree = SysfsTree(tmp_path)
    tree.write("/etc/cdi/other.yaml", text)
    tree.write("/etc/cdi/nvidia.yaml", SPEC)
    os.mkfifo(tree.host.root / "etc/cdi/fifo.json")
    assert CdiNames(tree.host).read() == {"nvidia.com/gpu=0", "nvidia.com/gpu=all"}
