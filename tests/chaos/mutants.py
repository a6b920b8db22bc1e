"""Mistakes that chaos must find: each is one change of kdp's source, by a rule that it breaks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import attrs

import kdp


@attrs.frozen
class Mutant:
    """One mistake.

    Attributes:
        rules: The rules of `judge` that it may break first; the play ends with the first violation.
        file: Below ``src/kdp``.
        right: A text that is there once.
        wrong: What stands there instead.
    """

    rules: tuple[int, ...]
    file: str
    right: str
    wrong: str


MUTANTS: Final[dict[str, Mutant]] = {
    "a container is told one device of several": Mutant(
        (1,),
        "deviceplugin/servicer.py",
        "allocation = Allocation(resource=self._resource, devices=self._healthy(wanted), deadline=until)",
        "allocation = Allocation(resource=self._resource, devices=self._healthy(wanted)[:1], deadline=until)",
    ),
    "one look that names a device is enough to release it": Mutant(
        (2,),
        "deviceplugin/tracking/allocations.py",
        "track.is_accounted_for and track.is_missed and not track.under_way",
        "track.is_seen and not track.under_way",
    ),
    "what a killed process owed is forgotten": Mutant(
        (3,),
        "deviceplugin/tracking/store.py",
        "        return list(found.values())",
        "        return []",
    ),
    "an unhealthy device is listed as healthy": Mutant(
        (6,),
        "deviceplugin/wire.py",
        "(_IS_HEALTHY if device.health.is_healthy else _IS_UNHEALTHY)",
        "(_IS_HEALTHY if device.health.is_healthy else _IS_HEALTHY)",
    ),
    "the socket stays when the process ends": Mutant(
        (7,),
        "kubelet/server.py",
        "                os.unlink(self._file)",
        "                pass",
    ),
    "the state that allocate left is not saved": Mutant(
        (3,),
        "deviceplugin/tracking/store.py",
        '"state": self.state,',
        '"state": {},',
    ),
    "each saving leaks a descriptor": Mutant(
        (8,),
        "deviceplugin/tracking/store.py",
        "            locks.close(before)",
        "            pass",
    ),
}


def source_of(mutant: Mutant, directory: Path) -> Path:
    """Copy kdp's source with the mistake in it, and return what goes into ``PYTHONPATH``."""
    root = Path(kdp.__file__).parent
    shutil.copytree(root, directory / "kdp", ignore=shutil.ignore_patterns("__pycache__"))
    file = directory / "kdp" / mutant.file
    text = file.read_text()
    assert text.count(mutant.right) == 1, f"{mutant.file}: {text.count(mutant.right)} times {mutant.right!r}"
    file.write_text(text.replace(mutant.right, mutant.wrong))
    return directory
