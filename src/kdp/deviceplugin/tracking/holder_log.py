"""`HolderLog`: which pods got devices and which gave them back, between two lists of the kubelet. Sans-IO.

A list of a kubelet that does not know all its pods yet says who holds a device, and not that nobody does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...concurrency.history import History
    from ...kubelet.podresources import Holder


logger = logging.getLogger(__name__)


@final
class HolderLog:
    """Adds each change to a history, and to the log at DEBUG; what pods hold at the first list is no news.

    Args:
        history: Takes the changes; None: only the log does.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._known: dict[tuple[str, str], tuple[Holder, ...]] | None = None

    def listed(self, holders: Mapping[tuple[str, str], tuple[Holder, ...]], *, is_complete: bool) -> None:
        """Take a list.

        Args:
            holders: The containers that hold a device, by resource and device id.
            is_complete: Whether nobody holds what it does not name.
        """
        known = self._known
        if known is None:
            self._known = dict(holders)
            return
        returned = [
            (key, holder)
            for key, before in known.items()
            for holder in before
            if holder not in holders.get(key, ()) and (is_complete or key in holders)
        ]
        taken = [(key, holder) for key, now in holders.items() for holder in now if holder not in known.get(key, ())]
        for (resource, holder), ids in _by_holder(returned).items():
            self._tell("released", resource, holder, ids)
        for (resource, holder), ids in _by_holder(taken).items():
            self._tell("held", resource, holder, ids)
        self._known = dict(holders) if is_complete else {**known, **holders}

    def _tell(self, kind: Literal["held", "released"], resource: str, holder: Holder, ids: list[str]) -> None:
        if self._history is not None:
            self._history.add(kind, resource, f"by {holder}", ids)
        logger.debug("%s: %s is %s by %s", resource, ", ".join(ids), kind, holder, extra={"resource": resource})


def _by_holder(found: Iterable[tuple[tuple[str, str], Holder]]) -> dict[tuple[str, Holder], list[str]]:
    grouped: dict[tuple[str, Holder], list[str]] = {}
    for (resource, device_id), holder in found:
        grouped.setdefault((resource, holder), []).append(device_id)
    return grouped
