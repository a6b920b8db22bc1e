"""CDI files: written so that a runtime sees the old one or the new one, and found again by their names.

A runtime reads every ``.json`` and ``.yaml`` file of its directories whenever one changes. Of two files with one kind
and one device name it uses neither, so a resource has one file name, whichever process writes it: a rolling update's
new process replaces what the old one wrote. A kind may be divided into several files with names of their own, one for
each claim of a DRA driver, so that one can go without the others.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ..errors import CdiWriteError, InvalidNameError, InvalidValueError
from ..storage import files, reading
from .parse import parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    from ..hardware import Host
    from .model import CdiSpec

_PREFIX, _SUFFIX = "kdp_", ".json"


class CdiDirectory:
    """kdp's files in a CDI directory. All methods block for a few system calls.

    Args:
        path: The directory, as this process sees it; made when it is needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, kind: str, part: str = "") -> Path:
        """Return the file of a kind, or of a part of it.

        Raises:
            InvalidNameError: The part is no name of a file.
        """
        if "/" in part or "\0" in part:
            raise InvalidNameError(f"part {part!r} of CDI kind {kind}: must not have '/' or NUL; for example 'claim-0'")
        return self.path / f"{_PREFIX}{kind.replace('/', '_')}{f'_{part}' if part else ''}{_SUFFIX}"

    def parts(self, kind: str) -> list[str]:
        """Return the parts of a kind that have a file.

        Raises:
            OSError: The directory is there and cannot be read.
        """
        stem = f"{_PREFIX}{kind.replace('/', '_')}_"
        try:
            names = sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name[len(stem) : -len(_SUFFIX)] for name in names if name.startswith(stem) and name.endswith(_SUFFIX)]

    def write(self, spec: CdiSpec, part: str = "") -> bool:
        """Write the file of a spec, or of a part of its kind, unless it has the same bytes; say whether it was written.

        That of a part is not synced: no container outlives a loss of power, and a new one has it written again.

        Raises:
            CdiWriteError: The text names the file and the reason.
        """
        file, data = self.file(spec.kind, part), spec.encode()
        try:
            if reading.read(file, limit=len(data), follow=False) == data:
                return False
        except OSError:
            pass  # missing, or something else: it is replaced
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Runtimes read only .json and .yaml, so nobody sees the draft.
            files.replace(file, data, mode=0o644, sync="nothing" if part else "content")
        except OSError as error:
            raise CdiWriteError(
                f"CDI file {file} cannot be written: {error.strerror}; mount the node's {self.path} writable"
            ) from None
        return True

    def remove(self, kind: str) -> None:
        """Remove the file of a kind, if it is there and may be removed."""
        with contextlib.suppress(OSError):
            self.file(kind).unlink()

    def remove_part(self, kind: str, part: str) -> bool:
        """Remove the file of a part of a kind; return whether there was one.

        Raises:
            CdiWriteError: It is still there.
        """
        file = self.file(kind, part)
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CdiWriteError(
                f"CDI file {file} cannot be removed: {error.strerror}; mount the node's {self.path} writable"
            ) from None
        return True

    def remove_stale(self, host: Host) -> list[Path]:
        """Remove and return kdp's useless files: broken ones, and those without an existing device node.

        A file says nothing about who wrote it, and another process of kdp may have written it for other devices. So
        only what is of no use to anybody goes, and its author writes it anew when its devices come back.
        """
        removed: list[Path] = []
        with contextlib.suppress(OSError):
            for file in sorted(self.path.glob(f"{_PREFIX}*{_SUFFIX}")):
                with contextlib.suppress(OSError):
                    if self._is_stale(file, host):
                        file.unlink()
                        removed.append(file)
        return removed + self.remove_drafts()

    def remove_drafts(self) -> list[Path]:
        """Remove what processes have left that were killed while they wrote, and return it."""
        return files.remove_drafts(self.path, _PREFIX)

    @staticmethod
    def _is_stale(file: Path, host: Host) -> bool:
        try:
            spec = parse_spec(reading.read(file, follow=False), where=str(file))
        except InvalidValueError:
            return True
        except reading.UnusableFileError:
            return not file.is_symlink()  # a runtime would wait at a FIFO; a link was made by somebody else
        nodes = [node for device in spec.devices for node in device.edits.device_nodes]
        return bool(nodes) and not any(host.exists(node.host_path or node.path) for node in nodes)
