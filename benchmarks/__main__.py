"""``python -m benchmarks``: measure, and print the table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from importlib.metadata import version

from .setting import Setting
from .table import Row, show

GROUPS = (
    "start",
    "memory",
    "metrics",
    "allocate",
    "lists",
    "health",
    "prefer",
    "stop",
    "idle",
    "backends",
    "restarts",
    "real",
    "dra",
)


def main() -> int:
    """Measure what the command line asks for; return 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure kdp beside a bare plugin.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few rounds, below a minute; for a look")
    parser.add_argument("--against", metavar="REV", help="measure this tree and a commit in turn, and nothing else")
    parser.add_argument("--seed", type=int, default=1, help="of everything random; default: 1")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - set(GROUPS):
        parser.error(f"there is no group {min(unknown)!r}; there are {', '.join(GROUPS)}")
    setting = Setting(quick=arguments.quick, seed=arguments.seed)
    begun = time.monotonic()
    if arguments.against is not None:
        from .against import rows as compared

        sources = [compared(setting, arguments.against)]
    else:
        groups = arguments.groups or GROUPS
        sources = [importlib.import_module(f".{group}", __package__).rows(setting) for group in groups]
    rows: list[Row] = []
    for source in sources:
        for row in source:
            rows.append(row)
            print(f"[{time.monotonic() - begun:5.0f} s] {row.name}: {row.figure} {row.verdict}", file=sys.stderr)
    print(
        f"Python {platform.python_version()}, grpcio {version('grpcio')}, protobuf {version('protobuf')}, "
        f"Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, seed {arguments.seed}"
        f"{', quick' if arguments.quick else ''}; {time.monotonic() - begun:.0f} s\n"
    )
    print(show(rows))
    return 1 if any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
