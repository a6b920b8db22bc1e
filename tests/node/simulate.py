"""Plays one scenario on the simulated kubelet and prints what was seen, in a process of its own.

usage: python -m tests.node.simulate SCENARIO MINOR    (in the repository's root; kdp is what PYTHONPATH says)
"""

from __future__ import annotations

import asyncio
import json
import sys

from .nodekit import MINORS
from .nodekit.nodes import lines, play
from .scenarios import SCENARIOS, SETTINGS

if __name__ == "__main__":
    name, minor = sys.argv[1:]
    chosen = next(m for m in MINORS if m.name == minor)
    steps = asyncio.run(play(SCENARIOS[name], chosen, simulated=True, settings=SETTINGS.get(name)))
    json.dump(lines(steps), sys.stdout)
