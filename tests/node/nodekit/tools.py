"""Where the compiled commands are, and one sentence for whoever has not compiled them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import attrs

__all__ = ["BIN", "MINORS", "SPARE_THE_PROCESSOR", "UNANSWERED", "Minor", "Missing", "program", "tool"]

BIN: Final = Path(__file__).resolve().parent.parent / "bin"

UNANSWERED: Final = BIN / ".unanswered"
"""What `packages.sh` writes where a source of packages does not answer."""

SPARE_THE_PROCESSOR: Final = {"GOGC": "800", "GOMEMLIMIT": "512MiB"}
"""The environment of programs in Go, whose heaps are small here: there is more memory than processor."""


class Missing(Exception):
    """Something that is not of this repository is not here; the text says how to get it."""


@attrs.frozen
class Minor:
    """One version of Kubernetes that the tests have.

    Attributes:
        name: Its minor version, as ``1.37``.
        release: The release that stands for it, as ``1.37.1``.
        profile: The profile of the simulated kubelet that must be like it.
    """

    name: str
    release: str
    profile: str

    @property
    def devmgr(self) -> Path:
        """Return the device manager's command.

        Raises:
            Missing: It is not compiled.
        """
        return tool(f"devmgr-{self.name}")

    @property
    def is_compiled(self) -> bool:
        """Whether its device manager is compiled."""
        return os.access(BIN / f"devmgr-{self.name}", os.X_OK)


MINORS: Final = (Minor("1.34", "1.34.4", "k134"), Minor("1.36", "1.36.3", "k136"), Minor("1.37", "1.37.1", "k137"))
"""Oldest first."""


def tool(name: str) -> Path:
    """Return the path of a compiled command.

    Raises:
        Missing: It is not compiled.
    """
    path = BIN / name
    if not os.access(path, os.X_OK):
        raise Missing(f"{name} is not compiled: run `make node-tools`, which needs Go and takes a quarter of an hour")
    return path


def program(name: str, folder: Path) -> Path:
    """Return the path of an unpacked command, or of one that is installed.

    Raises:
        Missing: There is none.
    """
    found = shutil.which(name, path=str(folder)) or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is missing: run `make node-tools`, or install it")
    return Path(found)
