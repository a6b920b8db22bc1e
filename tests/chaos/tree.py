"""`NodeTree`: the device nodes and the boot of a node, which a vendor's process sees in place of this machine's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final, final

from kdp.hardware.fake_nodes import NODES, UNREADABLE, NodeEntry, make_stand_in

MAJOR: Final = 231
BOOT: Final = "proc/sys/kernel/random/boot_id"


@final
class NodeTree:
    """A root directory of a node.

    Args:
        root: An empty directory of its own.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes: dict[str, NodeEntry] = {}
        (root / BOOT).parent.mkdir(parents=True)
        (root / UNREADABLE).touch()
        self._save()

    def add_node(self, path: str, minor: int) -> None:
        """Make a device node."""
        self._nodes[path] = NodeEntry(is_block=False, major=MAJOR, minor=minor, mode=0o666)
        self._save()
        make_stand_in(self.root / path.lstrip("/"))

    def remove_node(self, path: str) -> None:
        """Remove a device node."""
        (self.root / path.lstrip("/")).unlink(missing_ok=True)
        self._nodes.pop(path, None)
        self._save()

    def link(self, path: str, target: str) -> None:
        """Have a link there; one that is there is replaced."""
        draft = self.root / f"{path.lstrip('/')}.draft"
        draft.symlink_to(Path(target).name)
        draft.rename(self.root / path.lstrip("/"))

    def boot(self, rng: random.Random) -> None:
        """Let it be another boot of the node."""
        (self.root / BOOT).write_text(f"{rng.getrandbits(64):x}\n")

    def _save(self) -> None:
        draft = self.root / f".{NODES}"
        draft.write_text("".join(f"{path} {entry.line}\n" for path, entry in self._nodes.items()))
        draft.rename(self.root / NODES)
