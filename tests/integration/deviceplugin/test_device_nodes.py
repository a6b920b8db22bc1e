"""Device nodes that change in the moments in which nobody follows them yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kdp
from kdp.hardware import Host
from kdp.testing import SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected


async def test_a_node_that_vanishes_before_it_is_followed(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody told of it, and without a poll its device stayed healthy for ever."""
    paths = [tmp_path / "widget0", tmp_path / "widget1"]
    for path in paths:
        path.symlink_to("/dev/null")
    look = Host.node_fault
    going = {os.fspath(paths[0])}

    def look_and_lose(host: Host, host_path: str) -> str | None:
        fault = look(host, host_path)
        if host_path in going:
            going.remove(host_path)
            os.unlink(host_path)
        return fault

    monkeypatch.setattr(Host, "node_fault", look_and_lose)
    backend = Widgets(*(kdp.Device(id=path.name, edits=kdp.ContainerEdits.of_node(path)) for path in paths))
    async with connected(kubelet, backend):
        await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 1})
