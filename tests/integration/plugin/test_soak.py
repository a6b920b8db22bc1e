"""Many allocations and releases on the simulated kubelet. ``KDP_SOAK=10000`` lets as many be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak import ALLOCATIONS, soak

from kdp.testing import SimulatedKubelet

from .helpers import Figure


async def test_each_release_is_told_once_and_none_of_a_held_device(
    k137: SimulatedKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    monkeypatch.setattr("kdp.plugin.holdings.FIRST_LOOK", 0.02)
    await soak(k137, tmp_path, figure, name="simulated", allocations=ALLOCATIONS)
