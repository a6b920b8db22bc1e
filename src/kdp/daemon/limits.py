"""`check_limits`: whether the limits of this process are wide enough to serve at all.

With too few threads, file descriptors, or bytes, gRPC's C core aborts the process or waits for ever. Neither leaves a
sentence in the log. So each limit is checked at start. The figures were measured with a backend of three hooks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_FILES: Final = 32
"""Least limit of open files: with fewer, gRPC's C core may crash before anything can be said."""

FREE_FILES: Final = 26
"""Least number of files that must still be free, if the process has many open when it starts."""

LEAST_MIB: Final = 1536
"""Least address space: most of it is reserved for threads' stacks and heaps, and never used.

With 2 processors 1,024 MiB are enough; 768 are so only if few threads allocate at the same moment. With 16 or more
processors, gRPC has 12 more threads, with a stack of 8 MiB each.
"""


def least_threads() -> int:
    """Return the least number of threads: gRPC keeps 4 to 16 of them, depending on the number of processors.

    With 2 processors 13 threads are enough for a backend of three hooks.
    """
    return 10 + min(16, max(4, os.sysconf("SC_NPROCESSORS_CONF")))


def check_limits() -> None:
    """Check the limits of files, address space, and threads.

    Raises:
        ConfigurationError: One is too low.
    """
    _check_files()
    _check_address_space()
    _check_threads()


def _check_files() -> None:
    files = os.sysconf("SC_OPEN_MAX")
    if files < 0:  # without a limit
        return
    if files < LEAST_FILES:
        raise ConfigurationError(
            f"only {files} file descriptors may be open (ulimit -n), too few for gRPC; give this process "
            f"{LEAST_FILES} or more"
        )
    with contextlib.suppress(OSError):
        used = len(os.listdir("/proc/self/fd")) - 1
        if files - used < FREE_FILES:
            raise ConfigurationError(
                f"{used} of {files} file descriptors are open already (ulimit -n), too many for gRPC; give this "
                f"process {used + FREE_FILES} or more, or close them before kdp starts"
            )


def _check_address_space() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_MIB << 20:
        raise ConfigurationError(
            f"only {limit >> 20} MiB of address space may be used (ulimit -v), too few for gRPC's threads; give this "
            f"process {LEAST_MIB} MiB or more, or limit its memory by a cgroup instead"
        )


def _check_threads() -> None:
    least = least_threads()
    limits = list(_limits_of_cgroups())
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if of_user != resource.RLIM_INFINITY and os.geteuid() != 0:  # how many others the user has is not known
        limits.append((of_user, 0, "ulimit -u"))
    for limit, others, name in limits:
        if limit - others < least:
            raise ConfigurationError(
                f"only {max(0, limit - others)} threads can be started ({name} {limit}), too few for gRPC; give this "
                f"process {least + others} or more on this node"
            )


def _limits_of_cgroups() -> Iterator[tuple[int, int, str]]:
    """Yield each limit of threads that a cgroup has, how many of them others have, and the limit's name."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "pids"):
                continue
            root = Path("/sys/fs/cgroup", controllers)
            for group in (root / path.lstrip("/"), root):  # the latter in a cgroup namespace of its own
                with contextlib.suppress(OSError, ValueError):
                    limit = int((group / "pids.max").read_text())  # or "max"
                    yield limit, int((group / "pids.current").read_text()) - threading.active_count(), "pids.max"
