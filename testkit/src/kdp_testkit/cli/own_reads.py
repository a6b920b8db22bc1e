"""A warning about a class that reads this machine's ``/sys`` in spite of its `kdp.hardware.Host` of another node.

On the node such a class works, and on a recorded node it shows this machine's hardware, or none. Python calls an
audit hook at each `open` and each listing of a directory, so the warning names the line. A C library's reads are
not seen.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from typing import TYPE_CHECKING, Final

from kdp.supervision import hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

_OPENED: Final = "open"
_LISTED: Final = ("os.listdir", "os.scandir")
_OTHERS: Final = (sysconfig.get_path("stdlib"), "<", __file__)
"""How the names of files begin that are no vendor's: the standard library, code without a file, and this one."""


def watch(arguments: Sequence[str]) -> None:
    """Log each line of a hook that reads this machine's ``/sys``, if ``kdp run`` has another node's files."""
    given = {argument.partition("=")[0] for argument in arguments}
    if given & {"--snapshot", "--host-root"} or os.environ.get("KDP_SNAPSHOT") or os.environ.get("KDP_HOST_ROOT"):
        said: set[str] = set()
        sys.addaudithook(lambda event, given: _look(event, given, said))


def _look(event: str, given: tuple[object, ...], said: set[str]) -> None:
    if event != _OPENED and event not in _LISTED:
        return
    path = given[0]
    if not isinstance(path, str) or (not path.startswith("/sys/") and not (path == "/dev" and event in _LISTED)):
        return
    place = _place_in_hook()
    if place is not None and place not in said:
        said.add(place)
        logger.warning(
            "%s: a hook reads %s of this machine, and not of the node that it was given: read it by the class's "
            "kdp.hardware.Host",
            *(place, path),
        )


def _place_in_hook() -> str | None:
    """Return the innermost line of the vendor's that runs; `None` if no hook runs."""
    frame, place = sys._getframe(2), ""  # pyright: ignore[reportPrivateUsage]
    while (file := frame.f_code.co_filename) != hooks.__file__:
        if not place and not file.startswith(_OTHERS):
            place = f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return place or None
