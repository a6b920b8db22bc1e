"""Answers to the kubelet: checks of what ``prefer`` returned, the code of each failure, and who chose the devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast, final

import grpc

from ..errors import (
    AllocationError,
    EditConflictError,
    HookError,
    HookTimeoutError,
    InvalidValueError,
    KdpError,
    NotReady,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import wire


_Code = grpc.StatusCode

_CODES = {
    HookTimeoutError: _Code.DEADLINE_EXCEEDED,
    HookError: _Code.INTERNAL,  # of which the one above is a kind
    NotReady: _Code.UNAVAILABLE,
    AllocationError: _Code.FAILED_PRECONDITION,
    EditConflictError: _Code.INTERNAL,  # the backend's mistake: no choice of the pod's
}


def code_of(error: Exception) -> grpc.StatusCode:
    """Return the status code of a call that failed with this error; what is not kdp's is a bug of it."""
    if not isinstance(error, KdpError):
        return _Code.INTERNAL
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _Code.INVALID_ARGUMENT)


def result_of(code: grpc.StatusCode) -> str:
    """Return how a call with this status code is counted; one of `kdp.kubelet.calls.RESULTS`."""
    if code is _Code.OK:
        return "ok"
    return "failed" if code in (_Code.CANCELLED, _Code.INTERNAL, _Code.DEADLINE_EXCEEDED) else "refused"


def preferred_ids(ids: Any) -> tuple[str, ...] | None:
    """Return what ``prefer`` returned; None: it has no opinion.

    Raises:
        InvalidValueError: It is no sequence of ids.
    """
    if ids is None:
        return None
    rule = "must be a sequence of device ids or None"
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidValueError(f"it returned {ids!r}: {rule}")
    found = tuple(cast("Iterable[object]", ids))
    if odd := [each for each in found if not isinstance(each, str)]:
        raise InvalidValueError(f"it returned {kind_of(odd[0])}: {rule}")
    return cast("tuple[str, ...]", found)


def preference_fault(ids: Sequence[str], query: wire.PreferQuery) -> str | None:
    """Return why the kubelet would not use this answer as it is (contract section 7); None: it would."""
    chosen = set(ids)
    if len(chosen) != len(ids) or len(ids) != query.size:
        return f"returned {len(ids)} ids ({len(chosen)} different), but {query.size} were requested"
    if foreign := sorted(chosen - set(query.available)):
        return f"returned {foreign[0]!r}, which is not available"
    if missing := sorted(set(query.must_include) - chosen):
        return f"left out {missing[0]!r}, which must be included"
    return None


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
