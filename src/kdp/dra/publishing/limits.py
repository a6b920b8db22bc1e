"""`Limits`: what an API server of which version accepts in a ResourceSlice.

Source: the constants of ``k8s.io/kubernetes`` ``pkg/apis/resource/types.go`` in versions 1.34 to 1.37.
"""

from __future__ import annotations

import re
from typing import final

import attrs

from ...errors import InvalidValueError
from ...model.names import MAX_ATTRIBUTE_BYTES

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+-].*)?\Z")
OLDEST = (1, 34)
"""The first version with ``resource.k8s.io/v1``."""


@final
@attrs.frozen(kw_only=True)
class Limits:
    """The limits of a version that differ, and those that do not.

    Attributes:
        version: Major and minor.
        devices: Devices in a slice.
        devices_with_more: The same where one of them has taints or lists, or consumes counters.
        attributes: Attributes and capacities of a device, together.
        attribute_values: Values of a device's attributes, those in lists counted one by one; None: no such limit.
        value_bytes: Of a text or a version.
        taints: Of a device.
        has_effect_none: Whether a taint may have the effect ``None``.
        has_lists: Whether the server knows attributes that are lists (behind a gate that is off by default).
        combined: Whether counter sets lie in the slice of the devices that consume them; False: in slices of their own.
        counters_per_slice: Counters of all sets of a slice (combined only).
        consumed_per_device: Counters that a device consumes, of all sets (combined only).
        consumed_per_slice: Counters that a slice's devices consume (combined only).
        sets_per_slice: Counter sets of a slice (not combined).
        counters_per_set: Counters of a set, and of what a device consumes of one (not combined).
        sets_per_device: Counter sets that a device consumes of (not combined).
        has_fractions: Whether a range of a request policy may have amounts that are no whole numbers. The gate of that,
            DRAFractionalCapacityRange, is new in 1.37 and on only where the cluster was told never to go back to 1.36.
    """

    version: tuple[int, int]
    devices: int = 128
    devices_with_more: int = 64
    attributes: int = 32
    attribute_values: int | None = 48
    value_bytes: int = MAX_ATTRIBUTE_BYTES
    taints: int = 16
    has_effect_none: bool = True
    has_lists: bool = True
    combined: bool = False
    counters_per_slice: int = 32
    consumed_per_device: int = 32
    consumed_per_slice: int = 1024
    sets_per_slice: int = 8
    counters_per_set: int = 32
    sets_per_device: int = 2
    has_fractions: bool = True

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
        if minor == OLDEST:
            return cls(
                version=minor,
                devices_with_more=128,
                attribute_values=None,
                taints=4,
                has_effect_none=False,
                has_lists=False,
                combined=True,
                has_fractions=False,
            )
        if minor == (1, 35):
            return cls(version=minor, attribute_values=None, has_lists=False, has_fractions=False)
        return cls(version=minor, has_fractions=minor >= (1, 38))
