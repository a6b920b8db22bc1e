"""Ten thousand allocations and releases on the simulated kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak import soak

from kdp.testing import SimulatedKubelet

from .helpers import Figure


@pytest.mark.slow
async def test_each_release_is_told_once_and_none_of_a_held_device(
    kubelet: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("kdp.deviceplugin.tracking.allocations.FIRST_LOOK", 0.02)
    await soak(kubelet, tmp_path, figure, name="simulated, 10,000 and more", allocations=10_000)
