"""What README and docs claim, beyond their code blocks."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from kdp.testing import SimulatedKubelet

from .blocks import ROOT, blocks_of

pytestmark = pytest.mark.repository

README = ROOT / "README.md"


@pytest.fixture
def manifest() -> dict[str, dict[str, Any]]:
    """The documents of the README's manifest, by their kind."""
    (block,) = [block for block in blocks_of(README) if block.marks.get("file") == "kdp.yaml"]
    return {document["kind"]: document for document in yaml.safe_load_all(block.text)}


@pytest.fixture
def pod(manifest: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec = manifest["DaemonSet"]["spec"]
    labels = spec["selector"]["matchLabels"]
    assert labels.items() <= spec["template"]["metadata"]["labels"].items()
    return dict(spec["template"]["spec"])


@pytest.mark.anyio
async def test_its_container_registers_with_a_kubelet(
    manifest: dict[str, dict[str, Any]], pod: dict[str, Any], tmp_path: Path
) -> None:
    """The container's command as the image and the manifest make it; only its directories and its port are others."""
    (container,) = pod["containers"]
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", (ROOT / "examples/generic/Dockerfile").read_text(), re.MULTILINE)
    assert entry is not None
    host = tmp_path / "host"
    host.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(manifest["ConfigMap"]["data"]["config.yaml"])
    places = {"/etc/kdp-generic/config.yaml": str(config), "--host-root=/host": f"--host-root={host}"}
    places["--http=:8080"] = "--http=127.0.0.1:0"
    words: list[str] = [*yaml.safe_load(entry[1]), *container["args"]]
    program, *arguments = words
    for place, here in places.items():
        assert any(place in argument for argument in arguments), place
        arguments = [argument.replace(place, here) for argument in arguments]

    async with SimulatedKubelet() as kubelet:
        where = {**os.environ, "KDP_DEVICE_PLUGIN_DIR": str(kubelet.paths.device_plugin_dir)}
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        async with await anyio.open_process(command, stdout=None, stderr=None, env=where) as process:
            # There is no /dev/fuse below this host's root, so no device is healthy; but all of them are known.
            await kubelet.until(streaming="example.com/fuse")
            process.terminate()
            assert await process.wait() == 0


def test_it_has_no_privileges(manifest: dict[str, dict[str, Any]], pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    security = container["securityContext"]

    assert not {"privileged", "hostNetwork", "hostPID", "hostIPC"} & {*security, *pod}
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert manifest["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_table_of_failures_agrees_with_the_generated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(os.fspath(ROOT / "tests"))
    catalogue = importlib.import_module("integration.faults.catalogue")
    section = README.read_text().partition("## What it does when something fails")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    claimed = {fault: process for fault, _, process in rows if fault != "fault"}
    seen = {
        cells[0].removeprefix("| "): cells[-1].removesuffix(" |")
        for line in catalogue.PAGE.read_text().splitlines()
        if line.startswith("| ") and len(cells := line.split(" | ")) > 2
    }

    assert claimed.keys() <= {fault.value for fault in catalogue.Fault}
    assert {fault: seen.get(fault, process) for fault, process in claimed.items()} == claimed
