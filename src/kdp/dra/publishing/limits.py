"""`Limits`: how ResourceSlices are filled for an API server of which version.

Source: the constants of ``k8s.io/kubernetes`` ``pkg/apis/resource/types.go`` in versions 1.34 to 1.37.
"""

from __future__ import annotations

import re
from typing import final

import attrs

from ...errors import InvalidValueError

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+-].*)?\Z")
OLDEST = (1, 34)
"""The first version with ``resource.k8s.io/v1``."""


@final
@attrs.frozen(kw_only=True)
class Limits:
    """How a version wants its slices to be filled; what else it takes it says itself.

    Attributes:
        version: Major and minor.
        combined: Whether counter sets lie in the slice of the devices that consume them; False: in slices of their own.
        counters_per_slice: Counters of all sets of a slice (combined only).
        consumed_per_slice: Counters that a slice's devices consume (combined only).
        sets_per_slice: Counter sets of a slice (not combined).
    """

    version: tuple[int, int]
    combined: bool = False
    counters_per_slice: int = 32
    consumed_per_slice: int = 1024
    sets_per_slice: int = 8

    @classmethod
    def of(cls, version: str) -> Limits:
        """Return the limits of a server by its version, as ``v1.37.1``; a version newer than kdp counts as the newest.

        Raises:
            InvalidValueError: It is no version, or older than 1.34.
        """
        match = _VERSION.match(version)
        if match is None:
            raise InvalidValueError(f"server version {version!r}: must be a version of Kubernetes; valid is 'v1.37.1'")
        minor = (int(match[1]), int(match[2]))
        if minor < OLDEST:
            raise InvalidValueError(
                f"server version {version!r}: DRA needs Kubernetes 1.34 or newer; use the device plugin there"
            )
        return cls(version=minor, combined=minor == OLDEST)
