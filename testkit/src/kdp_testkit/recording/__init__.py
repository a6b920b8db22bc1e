"""Recordings of what a kubelet and a plugin say to each other, and replaying them as regression tests.

`Recorder` stands between a live kubelet and a plugin and writes a file (`transcript` says what is in it); `Replay`
plays the kubelet's side of such a file to a plugin; `replay` is that as one line of a test. ``kdp record`` and
``kdp replay`` are the same from the command line.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from .player import OnList, Replay
from .plugins import of_backend, of_command
from .record import Recorder, run_recording
from .redaction import KINDS, Redaction
from .report import Report, Step
from .transcript import RecordingError, Writer, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from kdp.hardware import Host
    from kdp.model.backend import DeviceBackend

__all__ = [
    "KINDS",
    "Recorder",
    "RecordingError",
    "Redaction",
    "Replay",
    "ReplayDiffers",
    "Report",
    "Step",
    "Writer",
    "of_backend",
    "of_command",
    "read",
    "replay",
    "run_recording",
]


class ReplayDiffers(AssertionError):
    """A backend does not answer as recorded; the text says where and in what.

    Attributes:
        report: All of it.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(f"{report.path}:\n{report.story()}")
        self.report = report


async def replay(
    file: str | os.PathLike[str],
    make_backend: Callable[[], DeviceBackend],
    *,
    host: Host | None = None,
    deadline: float = 10.0,
    lists: Literal["all", "first"] = "all",
    on_list: OnList | None = None,
) -> Report:
    """Play a recording to a backend in this process: a regression test in one line.

    Args:
        file: What ``kdp record`` has written.
        make_backend: Makes the backend; called for each start of the recorded plugin.
        host: The node's files, for paths that the backend names: a snapshot, or a tree of the fixture ``sysfs_tree``.
        deadline: Seconds for each thing that the backend must do.
        lists: ``all``: every recorded list must come; ``first``: only the first one of each stream, for a recording in
            which the hardware changed and a test where it does not.
        on_list: Called with the resource and the recorded devices before a list is awaited that is not the first of its
            stream; it changes the hardware of the test so that the list will come. May be ``async def``.

    Returns:
        What was compared.

    Raises:
        ReplayDiffers: Something is not as recorded.
        RecordingError: The file cannot be read.
    """
    recording = read(os.fspath(file))
    start = of_backend(make_backend, host=host)
    report = await Replay(recording, start, deadline=deadline, lists=lists, on_list=on_list).run()
    if not report.is_same:
        raise ReplayDiffers(report)
    return report
