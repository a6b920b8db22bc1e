"""Directories that settings name: which are written to, which do not exist, and a state directory that cannot be used.

What is wrong is said at the start, before anything depends on it: a slip of the pen would look like a node without
devices, or take the memory of a plugin that is killed.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..kubelet.paths import DEVICE_PLUGIN_DIR
from ..storage.files import why_no_file
from .settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .settings import Settings

logger = logging.getLogger(__name__)

_PLACES: Final = (
    "kubelet_root",
    "device_plugin_dir",
    "plugins_registry_dir",
    "pod_resources_dir",
    "host_root",
)
"""The settings whose directories are the node's: kdp makes none of them. Kubelets before 1.37 have no pods API."""


def written_places(settings: Settings, driver: str | None = None) -> Mapping[str, Path]:
    """Return the directories that are written to while a plan is served, by the name that metrics have for them.

    Args:
        settings: The plan's.
        driver: The DRA driver's name, see `ServingPlan.driver`; None: it is not known.
    """
    paths = settings.paths
    if settings.mode == "dra-controller":  # it has no kubelet
        return {}
    if settings.mode == "dra":
        claims = paths.plugins_dir / (driver or "")
        found = {"plugins": paths.plugins_registry_dir, "claims": claims, "cdi": settings.cdi_dir}
    else:
        is_watcher = settings.registration == "watcher"
        found = {"plugins": paths.plugins_registry_dir if is_watcher else paths.device_plugin_dir}
        if settings.cdi != "off":
            found["cdi"] = settings.cdi_dir
    return found if settings.state_dir is None else {**found, "state": settings.state_dir}


def beside(settings: Settings, given: Collection[str]) -> Settings:
    """Return settings whose directories are beside a plugin directory that is not the node's, unless they are given.

    A test gives that one alone, and the state and the sockets of this machine's own plugins are none of its business.
    """
    if settings.device_plugin_dir == DEVICE_PLUGIN_DIR:
        return settings
    root = settings.device_plugin_dir.parent
    usual: dict[str, Any] = {"state_dir": root / "kdp"}
    if "pod_resources_dir" not in given:  # else the kubelet's other directories stay, and the names of our own files
        usual["kubelet_root"] = root
    return attrs.evolve(settings, **{name: place for name, place in usual.items() if name not in given})


def warn_of_missing_places(settings: Settings) -> None:
    """Log a warning for each directory of the node that was given and does not exist."""
    for name in _PLACES:
        setting = SETTINGS[name]
        place: Path | None = getattr(settings, name)
        if place is not None and place != setting.default and (why := _why_no_directory(place)) is not None:
            remedy = "run this as root" if why == os.strerror(errno.EACCES) else "mount the node's directory there"
            logger.warning("%s %s: %s; correct the path, or %s", setting.flag, place, why, remedy)


def _why_no_directory(place: Path) -> str | None:
    """Return why a path cannot be used as a directory; None: it is one that this user may look at."""
    try:
        os.stat(f"{place}/")  # with the slash, a file is refused
    except FileNotFoundError:
        return "there is no such directory"
    except OSError as error:
        return error.strerror
    return None


def warn_of_closed_kubelet(settings: Settings) -> None:
    """Log a warning if a process without root may not make its sockets in the kubelet's directory."""
    user = os.geteuid()
    place = written_places(settings).get("plugins")
    if user != 0 and place is not None and (missing := _missing_right(place)) is not None:
        logger.warning(
            "%s: user %d may not %s the kubelet's directory, so no kubelet will list the devices; run the plugin as "
            "root, or try it with kdp simulate, which needs no root",
            place,
            user,
            missing,
        )


def _missing_right(directory: Path) -> str | None:
    try:
        os.stat(f"{directory}/")
    except PermissionError:
        return "enter"
    except OSError:  # there is no such directory, which is said when the kubelet is called
        return None
    return None if os.access(directory, os.W_OK | os.X_OK, effective_ids=True) else "write to"


def why_nothing_is_kept(settings: Settings) -> str | None:
    """Return the sentence for a state directory in which nothing can be kept; None: something can, or nothing need be.

    It blocks for the disk. An ordinary user who tries a plugin has no right to the default directory, which is no news.
    """
    place = settings.state_dir
    if place is None or settings.mode == "dra-controller" or _is_expected(place):
        return None
    why = _why_no_directory(place) or why_no_file(place)
    return None if why is None else f"state directory {place}: {why}; a restart forgets which pod holds a device"


def warn_of_unusable_state(settings: Settings) -> None:
    """Log a warning if nothing can be kept in the state directory. It blocks for the disk."""
    place, socket = settings.state_dir, settings.socket
    if place is None or settings.mode == "dra-controller" or (why := why_no_file(place)) is None:
        return
    asked = ", and commands on the node cannot ask this process"
    if socket is None or (isinstance(socket, Path) and socket.parent != place):
        asked = ""
    lost = f"so a restart forgets which pod holds a device{asked}; make it writable, or give another directory"
    level = logging.INFO if _is_expected(place) else logging.WARNING
    logger.log(level, "%s %s: nothing can be kept there (%s), %s", SETTINGS["state_dir"].flag, place, why, lost)


def _is_expected(place: Path) -> bool:
    """Return whether an ordinary user tries a plugin, who has no right to the default state directory."""
    return place == SETTINGS["state_dir"].default and os.geteuid() != 0
