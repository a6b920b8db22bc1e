"""`HeldClaim`: a claim that has devices of a backend, for people."""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.frozen(kw_only=True)
class HeldClaim:
    """A claim that has devices.

    Attributes:
        name: Its name, as ``namespace/name``.
        uid: Its UID.
        devices: The ids of its devices.
        is_prepared: Whether it is prepared; otherwise that is going on, or has failed.
    """

    name: str
    uid: str
    devices: tuple[str, ...]
    is_prepared: bool
