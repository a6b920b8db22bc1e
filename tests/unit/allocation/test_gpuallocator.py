"""`linked` beside NVIDIA's go-gpuallocator, by its stored answers and its own score of a set."""

from __future__ import annotations

import json

import pytest
from benchmarks.gpuallocator import ANSWERS, TOPOLOGIES, answers

from kdp.allocation import choose

STORED = answers()


def test_the_answers_say_what_gave_them() -> None:
    stored = json.loads(ANSWERS.read_text())
    assert stored["program"].startswith("github.com/NVIDIA/go-gpuallocator")
    assert stored["version"].startswith("v0.6.0")
    assert stored["date"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_no_set_is_worse_by_its_own_score(name: str) -> None:
    gpus = TOPOLOGIES[name]
    topology, devices = gpus.topology, gpus.devices
    better = 0
    for (available, required, size), theirs in STORED[name]:
        choice = choose(
            "linked",
            [device for i, device in enumerate(devices) if available >> i & 1],
            size,
            must_include=[device.id for i, device in enumerate(devices) if required >> i & 1],
            topology=topology,
        )
        ours = sum(1 << i for i, device in enumerate(devices) if device.id in choice.chosen)
        assert choice.proven
        assert gpus.score(ours) >= gpus.score(theirs), (available, required, size)
        better += gpus.score(ours) > gpus.score(theirs)
    if gpus.count == 8:
        assert len(STORED[name]) > 1_000
        assert better > 0  # it parts all that is free, and takes the best part
