"""`Choices`: who chose the devices of an allocation, the plugin or the kubelet. Sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST: Final = 16
"""Preferences that are remembered: the kubelet admits one pod at a time."""


@final
class Choices:
    """The last preferences, which an Allocate may follow."""

    def __init__(self) -> None:
        self._preferred: dict[frozenset[str], str] = {}

    def preferred(self, ids: Sequence[str], by: str) -> None:
        """Note that these devices were preferred, and by whom."""
        key = frozenset(ids)
        self._preferred.pop(key, None)
        self._preferred[key] = by
        if len(self._preferred) > MOST:
            del self._preferred[next(iter(self._preferred))]

    def why(self, ids: Sequence[str], *, asks: bool) -> str:
        """Return who chose the devices of a container, as a sentence's end.

        Args:
            ids: The devices.
            asks: Whether the kubelet was told to ask for preferences.
        """
        by = self._preferred.pop(frozenset(ids), None)
        if by is not None:
            return f"as {by} preferred"
        return "chosen by the kubelet, not by a preference" if asks else "chosen by the kubelet"
