"""Where `packages.sh` has put what guests are made of, and one sentence for whoever has not run it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

__all__ = ["BIN", "UNANSWERED", "Missing", "found", "program"]

BIN: Final = Path(__file__).resolve().parent.parent / "bin"

UNANSWERED: Final = BIN / ".unanswered"
"""What `packages.sh` writes where a source of packages does not answer."""

_HOW: Final = "run `make hardware-tools`"


class Missing(Exception):
    """Something that is not of this repository is not here; the text says how to get it."""


def found(pattern: str, what: str) -> Path:
    """Return the file below `BIN` that matches a pattern.

    Raises:
        Missing: There is none.
    """
    path = next(iter(sorted(BIN.glob(pattern))), None)
    if path is None:
        raise Missing(f"{what} is missing: {_HOW}")
    return path


def program(name: str, folder: str, package: str) -> Path:
    """Return the path of a program that was unpacked, or of one that is installed.

    Raises:
        Missing: There is none.
    """
    path = shutil.which(name, path=str(BIN / folder)) or shutil.which(name)
    if path is None:
        raise Missing(f"{name} is missing: {_HOW}, or install {package}")
    return Path(path)
