"""Plays one scenario on the simulated kubelet and prints what was seen, in a process of its own.

usage: python -m tests.node.simulate SCENARIO MINOR    (in the repository's root; kdp is what PYTHONPATH says)
"""

from __future__ import annotations

import asyncio
import json
import sys

from .nodekit import MINORS
from .nodekit.nodes import lines, play
from .scenarios import SCENARIOS

if __name__ == "__main__":
    name, minor = sys.argv[1:]
    steps = asyncio.run(play(SCENARIOS[name], next(m for m in MINORS if m.name == minor), simulated=True))
    json.dump(lines(steps), sys.stdout)
