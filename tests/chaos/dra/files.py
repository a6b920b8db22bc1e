"""`DriverFiles`: what a DRA driver keeps on the disk, as somebody else reads it; and how others damage it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

DAMAGES: Final = ("cut", "emptied", "changed", "replaced", "removed")


@final
class DriverFiles:
    """The files of one driver.

    Args:
        driver: The driver's name.
        data: Its data directory.
        cdi: Where the container runtime finds CDI specs.
    """

    def __init__(self, driver: str, data: Path, cdi: Path) -> None:
        self._driver = driver
        self._claims = data / "claims"
        self._metadata = data / "metadata"
        self._cdi = cdi

    def record(self, uid: str) -> Path:
        """Return the file that remembers a claim."""
        return self._claims / f"{uid}.json"

    def has_copy(self, uid: str) -> bool:
        """Return whether there is a second file that remembers the same of a claim."""
        record = self.record(uid)
        try:
            return record.with_name(f".{record.name}.copy").read_bytes() == record.read_bytes()
        except FileNotFoundError:
            return False

    def spec(self, uid: str) -> Path:
        """Return the CDI spec of a claim."""
        return self._cdi / f"kdp_{self._driver}_claim_{uid}.json"

    def environment(self, uid: str) -> Mapping[str, Mapping[str, str]] | None:
        """Return what a claim's CDI spec gives to containers, by CDI id; None: there is none that can be read."""
        try:
            return {
                name: dict(text.partition("=")[::2] for text in edits["env"])
                for name, edits in self._edits(uid).items()
            }
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def nodes(self, uid: str) -> Mapping[str, Sequence[str]] | None:
        """Return the device nodes that a claim's CDI spec gives, by CDI id; None: there is none that can be read."""
        try:
            return {
                name: [node.get("hostPath", node["path"]) for node in edits["deviceNodes"]]
                for name, edits in self._edits(uid).items()
            }
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _edits(self, uid: str) -> dict[str, dict[str, Any]]:
        spec = json.loads(self.spec(uid).read_text())
        return {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}

    def of(self, uid: str) -> list[str]:
        """Return the names of a claim's files."""
        return sorted(name for name in self.left() if uid in name)

    def left(self) -> list[str]:
        """Return the names of all files of claims, also of those that were not finished."""
        folders = [each for each in (self._claims, self._metadata, self._cdi) if each.is_dir()]
        return sorted(path.name for folder in folders for path in folder.iterdir())


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file in one of many ways, or remove it."""
    how = rng.choice(DAMAGES)
    data = bytearray(path.read_bytes())
    if how == "removed" or not data:  # it may have been emptied before
        path.unlink()
        return
    if how == "cut":
        del data[rng.randrange(len(data)) :]
    elif how == "emptied":
        data.clear()
    elif how == "changed":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        data[:] = rng.choice([b"null", b"[]", b"{}", rng.randbytes(200)])
    path.write_bytes(data)
