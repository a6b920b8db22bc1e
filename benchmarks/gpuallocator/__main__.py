"""``python -m benchmarks.gpuallocator BINARY VERSION``: ask go-gpuallocator, and store its answers."""

from __future__ import annotations

import datetime
import json
import sys

from . import ANSWERS, CASES, ask

binary, version = sys.argv[1:]
given = {name: ask(binary, name, cases) for name, cases in CASES.items()}
slowest = given["switch-tree-16"]
stored = {
    "program": "github.com/NVIDIA/go-gpuallocator, best-effort policy",
    "version": version,
    "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    "milliseconds on switch-tree-16 by size": {
        str(size): round(took / 1e6, 3) for size, (_, took) in enumerate(slowest, start=1)
    },
    "answers": {name: [mask for mask, _ in held] for name, held in given.items()},
}
lines = json.dumps(stored, separators=(",", ":")).replace(',"', ',\n"')
ANSWERS.write_text(lines + "\n")
