"""The sockets of a DRA driver: one where the kubelet's plugin watcher finds it, one for its calls.

============== ====================================== =====================================================
whose          alone                                  one of two pods in a rolling update
============== ====================================== =====================================================
registration   ``<driver>-reg.sock``                  ``<driver>-<pod UID>-reg.sock``
calls          ``dra.sock``                           ``dra-<pod UID>.sock``
============== ====================================== =====================================================

A path that would be too long has a digest of the pod's UID instead, or of the driver's name and it: always the same
one, so that the next container of the pod finds what the one before has left. The order is that of the Go helper.

Where one of these names may have been called in vain, both have a random suffix, ``<driver>-<suffix>-reg.sock``: a
kubelet that starts calls a socket that nobody answers with pauses of up to two minutes, which belong to the path, and
the next server at that path has to wait for their end.

Source: DRA contract section 2.1; ``k8s.io/dynamic-resource-allocation`` ``kubeletplugin``, version 0.37.1; for the
pauses ``pkg/kubelet/pluginmanager``, 1.37.1.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from pathlib import Path
from typing import final

import attrs

from ..errors import InvalidNameError
from ..kubelet.sockets import check_length

_INSTANCE = r"(-([0-9a-fA-F-]{36}|[A-Za-z0-9_-]{11}))?"
"""A pod's UID, or what stands for it."""

_SUFFIX = r"(-[0-9a-f]{8})?"


@final
@attrs.frozen(kw_only=True)
class DriverSockets:
    """Where one process of a driver listens.

    Attributes:
        driver: The driver's name.
        registration: Where the plugin watcher finds it.
        service: Where the kubelet calls it.
    """

    driver: str
    registration: Path
    service: Path
    _stems: tuple[str, ...] = attrs.field(alias="stems")

    @classmethod
    def of(
        cls, driver: str, *, registry: Path, data: Path, pod_uid: str | None, suffix: str | None = None
    ) -> DriverSockets:
        """Return the sockets of a driver.

        Args:
            driver: Its name.
            registry: The plugin watcher's directory.
            data: The driver's data directory.
            pod_uid: The pod's UID, if two pods may overlap in an update.
            suffix: Eight hexadecimal digits that no process has had before, for names that were never called; left out
                where a path has no room for it.

        Raises:
            InvalidNameError: A directory's path leaves no room for any name.
        """
        both = _digest(f"{driver}\0{pod_uid or ''}", 16)
        short = [] if pod_uid is None else [_digest(pod_uid, 8)]
        ids = [f"-{each}" for each in (pod_uid, *short) if each is not None] or [""]
        stems = [*(f"{driver}{each}" for each in ids), f"dra-{both}"]
        registrations = [f"{stem}-reg.sock" for stem in stems]
        services = [f"dra{each}.sock" for each in ids]
        if suffix is not None:
            registrations = [f"{stem}-{suffix}-reg.sock" for stem in stems] + registrations
            services = [f"dra-{suffix}.sock", *services]
        return cls(
            driver=driver,
            registration=_first(registry, registrations),
            service=_first(data, services),
            stems=tuple(stems),
        )

    def is_rival(self, name: str) -> bool:
        """Return whether a socket in the plugin watcher's directory belongs to this driver and pod, of any process."""
        return re.fullmatch(rf"({'|'.join(map(re.escape, self._stems))}){_SUFFIX}-reg\.sock", name) is not None

    def is_registration(self, name: str) -> bool:
        """Return whether a socket in the plugin watcher's directory is one of this driver, also before it is shown."""
        name = name.removeprefix(".")
        pattern = rf"{re.escape(self.driver)}{_INSTANCE}{_SUFFIX}-reg\.sock"
        return self.is_rival(name) or re.fullmatch(pattern, name) is not None

    def is_service(self, name: str) -> bool:
        """Return whether a socket in the data directory is for calls of this driver, also before it is shown."""
        return re.fullmatch(rf"\.?dra{_INSTANCE}{_SUFFIX}\.sock", name) is not None


def _first(directory: Path, names: list[str]) -> Path:
    paths = [directory / name for name in names]
    for path in paths[:-1]:
        with contextlib.suppress(InvalidNameError):
            check_length(path)
            return path
    check_length(paths[-1])
    return paths[-1]


def _digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")
