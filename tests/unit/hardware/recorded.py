"""The recorded nodes that these tests read; where they come from is told beside them."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "data/hardware"
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in DIRECTORY.glob("*.tar.gz"))


def file(name: str) -> Path:
    return DIRECTORY / f"{name}.tar.gz"
