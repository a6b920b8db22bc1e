"""What every group of rows gets."""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .kubelets import RESOURCE, kubelet
from .processes import Process, program
from .programs.names import ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Setting", "bare", "variables"]


@attrs.frozen
class Setting:
    """How to measure.

    Attributes:
        quick: Few rounds, for a look; not for judging.
        seed: Of everything random.
    """

    quick: bool
    seed: int

    def rounds(self, full: int, quick: int) -> int:
        """Return how many rounds to make."""
        return quick if self.quick else full

    def random(self, purpose: str) -> random.Random:
        """Return a source of random numbers that depends on the seed only."""
        return random.Random(f"{self.seed} {purpose}")  # noqa: S311 - for repeatability

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Make an empty kubelet root directory; its path is short, as a socket's must be."""
        root = Path(tempfile.mkdtemp(prefix="kdp-bench-", dir="/tmp"))
        try:
            (root / "device-plugins").mkdir()
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @contextmanager
    def node(self) -> Iterator[tuple[Path, Process]]:
        """Run a kubelet of its own for one plugin."""
        with self.directory() as root, kubelet(root) as process:
            yield root, process

    @contextmanager
    def connected(
        self, command: Sequence[str] | None, *, poll: str = "3600"
    ) -> Iterator[tuple[Path, Process, Process]]:
        """Run a plugin on a node of its own, once the kubelet has its first list; None: the bare one."""
        with self.node() as (root, node):
            command = bare(root) if command is None else command
            with Process(command, environment=variables(root, poll), log=root / "plugin.log") as plugin:
                node.event("list_received", resource=RESOURCE)
                yield root, node, plugin


def variables(root: Path, poll: str = "3600") -> dict[str, str]:
    """Return a kdp plugin's environment. Nothing that is timed can be helped by a poll."""
    return {
        "KDP_KUBELET_ROOT": str(root),
        "KDP_DEVICE_PLUGIN_DIR": str(root / "device-plugins"),
        "KDP_STATE_DIR": str(root / "state"),
        "KDP_POLL_INTERVAL": poll,
    }


def bare(root: Path, count: int = 8) -> list[str]:
    """Return the bare plugin's command line."""
    return program("bare", str(root / "device-plugins"), *ids(count))
