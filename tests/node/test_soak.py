"""Many allocations and releases on the kubelet's own device managers. ``KDP_SOAK=10000`` lets as many be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak import ALLOCATIONS, soak

from .backend import Figure
from .nodekit import DeviceManager


async def test_each_release_is_told_once_and_none_of_a_held_device(
    devmgr: DeviceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("kdp.deviceplugin.tracking.allocations.FIRST_LOOK", 0.02)
    await soak(devmgr, tmp_path, figure, name=devmgr.minor.release, allocations=ALLOCATIONS)
