"""NVML through nvidia-ml-py: how the library is found, opened and closed, and what its errors mean to us.

Every call may fail in three ways that matter here: the driver is gone (`kdp.NotReady`: kdp opens the backend again),
this GPU is gone (`GpuLost`), or this question has no answer on this GPU, with this driver (`ask` returns None). Only
the last may happen to a question that we can do without, so `ask` is for those.

All functions block; kdp calls ``def`` hooks in threads of their own, and ctypes lets go of Python's lock meanwhile.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import kdp
import kdp.hardware

if TYPE_CHECKING:
    from collections.abc import Callable

pynvml: Any = importlib.import_module("pynvml")
"""nvidia-ml-py, which has no types. Importing it does not load the library."""

LIBRARY = "libnvidia-ml.so.1"

_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib64",
    "lib",
)
"""Where drivers put it below their root: Debian's, Red Hat's, and what installers of container systems make."""

LIBRARY_PLACES = {"/usr"}
"""Their parent, if the driver has no root of its own: no node has all of them, and each node has this directory."""

_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
_DRIVER_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}


class GpuLost(Exception):
    """A GPU does not answer any more; the text says why."""


def reason(error: Exception) -> str:
    """Return an error of NVML in words: ``GPU is lost (NVML error 15)``."""
    value = getattr(error, "value", None)
    return f"{str(error).rstrip('.')} (NVML error {value})" if value is not None else f"{type(error).__name__}: {error}"


def is_lost(error: Exception) -> bool:
    """Return whether an error of NVML says that this GPU, or the driver, answers no call at all."""
    return getattr(error, "value", None) in _LOST | _DRIVER_GONE


def ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an optional call answers; None: it has no answer here, whatever the reason."""
    try:
        return call(*arguments)
    except (
        pynvml.NVMLError,
        AttributeError,
        ValueError,
    ):  # of nvidia-ml-py itself: an older one, or bytes that are no text
        return None


def must(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call answers that we cannot do without.

    Raises:
        GpuLost: The GPU does not answer, or not this question.
        kdp.NotReady: The driver is gone.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _DRIVER_GONE:
            raise kdp.NotReady(_gone(error)) from None
        if error.value in _LOST:
            raise GpuLost(f"it is lost: {reason(error)}") from None
        raise GpuLost(f"{call.__name__} failed: {reason(error)}") from None
    except ValueError as error:  # of nvidia-ml-py: bytes that are no text
        raise GpuLost(f"{call.__name__} failed: {reason(error)}") from None


def _gone(error: Any) -> str:
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return f"the driver and its library differ: {reason(error)}; a driver was updated, so restart the plugin"
    return f"the NVIDIA driver is not loaded: {reason(error)}"


def find_library(host: kdp.hardware.Host, driver_root: str) -> Path | None:
    """Return the library below the driver's root, as this process sees it; None: there is none.

    Args:
        host: The node's files.
        driver_root: Where the driver's files are on the node.
    """
    for directory in _DIRECTORIES:
        path = f"{driver_root.rstrip('/')}/{directory}/{LIBRARY}"
        if host.exists(path):
            return host.path(host.resolve(path))
    return None


@final
class Nvml:
    """The library, from `open` to `close`.

    Several users may open it; the last one who closes it shuts it down. So a thread that waits for an event has it open
    itself, and nobody shuts it down under its feet.
    """

    def __init__(self, host: kdp.hardware.Host, *, library: Path | None, driver_root: str) -> None:
        self._host = host
        self._library = library
        self._driver_root = driver_root
        self._lock = threading.Lock()

    def open(self) -> None:
        """Load and initialise the library.

        Raises:
            kdp.NotReady: There is no library or no driver, yet.
        """
        with self._lock:
            self._load()
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                raise kdp.NotReady(_gone(error) if error.value in _DRIVER_GONE else reason(error)) from None

    def _load(self) -> None:
        """Load the library of the node's driver, so that nvidia-ml-py finds that one.

        It asks the loader for the name alone, and glibc answers with what is loaded already under that name. So neither
        LD_LIBRARY_PATH nor a change of nvidia-ml-py is needed for a driver that is somewhere else.
        """
        is_ours = self._host.root == Path("/") and self._driver_root == "/"
        path = self._library or (None if is_ours else find_library(self._host, self._driver_root))
        if path is None and not is_ours:
            # The loader would find the library of this container, which is not the one that we were told of.
            raise kdp.NotReady(
                f"{LIBRARY} is not in {self._driver_root} of the node, so the NVIDIA driver is not installed (yet); "
                f"looked in {', '.join(_DIRECTORIES)}"
            )
        if pynvml.nvmlLib is not None:
            return  # nvidia-ml-py keeps the first library for good; a second one in the process helps nobody
        try:
            ctypes.CDLL(str(path or LIBRARY))
        except OSError as error:
            raise kdp.NotReady(
                f"the NVIDIA driver is not installed (yet): {error}; set driver_root, or library, if it is elsewhere"
            ) from None

    def close(self) -> None:
        """Give it back; errors tell nothing new."""
        with self._lock:
            ask(pynvml.nvmlShutdown)
