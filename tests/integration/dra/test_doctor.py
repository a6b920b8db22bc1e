"""``kdp doctor`` beside a DRA driver's process: nothing that only a device plugin needs is a fault."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from .test_simulated import Node, _until_slices, node_of, program


async def doctor(node: Node, **environment: str) -> tuple[int, dict[str, Any]]:
    places = {
        "--kubelet-root": node.kubelet.root,
        "--device-plugin-dir": node.folder / "not-mounted",
        "--cdi-dir": node.cdi,
        "--state-dir": node.folder / "state",
    }
    flags = [os.fspath(part) for pair in places.items() for part in pair]
    command = [sys.executable, "-m", "kdp", "doctor", *flags, "--format", "json"]
    environ = {**os.environ, "HOME": os.fspath(node.folder), **environment}
    done = await anyio.run_process(command, check=False, env=environ)
    return done.returncode, {each["id"]: each for each in json.loads(done.stdout)["questions"]}


@pytest.mark.parametrize("where", ["pod", "node"])
async def test_a_healthy_driver_failed_where_only_its_own_directories_are_mounted(folder: Path, where: str) -> None:
    async with node_of(folder, "k134") as node, program(node):
        await node.kubelet.until_registered("fuse.example.com", seconds=30)
        await _until_slices(node, "fuse.example.com")
        variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if where == "pod" else {}
        code, found = await doctor(node, **variables)
    bad = {name: each["seen"] for name, each in found.items() if each["answer"] in ("not known", "failed")}
    if where == "node":  # this machine may have no container runtime
        bad.pop("cdi-runtime", None)
    assert not bad
    assert code in ((0,) if where == "pod" else (0, 4))
    assert found["plugins-registry"]["answer"] == "ok"
    assert "kubelet-socket" not in found
    assert found["dra-published"]["answer"] == "ok"
