"""Names that are probably slips for known ones, and the hint that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .backend import DeviceBackend, WrappedBackend

if TYPE_CHECKING:
    from collections.abc import Iterable

_SURE: Final = 0.85
"""Similarity from which on a name that nobody refused counts as a slip: a vendor may have names of his own."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant by an unknown one; None: there is none.

    It is generous, for names that are refused in any case: a beginning counts, as ``nvidia`` of ``nvidia-gpu``.
    """
    import difflib  # only after a slip

    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return near[0] if near else next((each for each in names if len(name) > 2 and each.startswith(name)), None)


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'allocate'?``, or an empty text."""
    near = nearest(name, known)
    return "" if near is None else f"did you mean {near!r}?"


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that an unknown one is almost sure to mean; None: it is a name of its own.

    Case and underscores do not count, so that ``pollInterval`` is one.
    """
    left, letters = _plain(name), sorted(_plain(name))
    meant, best = None, _SURE
    for each in known:
        right = _plain(each)
        if _most(left, right) < best:
            continue
        score = 1.0 if len(left) > 3 and letters == sorted(right) else _similarity(left, right)
        if score >= best:
            meant, best = each, score
    return meant


def _plain(text: str) -> str:
    return text.lower().replace("_", "")


def _most(left: str, right: str) -> float:
    """Return what the similarity is at most: most names have too few letters in common, and cost nothing more."""
    if not left or not right or 2 * min(len(left), len(right)) < _SURE * (len(left) + len(right)):
        return 0.0
    return 2 * sum(min(left.count(each), right.count(each)) for each in set(left)) / (len(left) + len(right))


def _similarity(left: str, right: str) -> float:
    import difflib  # only for names that are alike

    return difflib.SequenceMatcher(None, left, right).ratio()


_HOUR: Final = 3600.0


def slips_in(backend: DeviceBackend) -> list[str]:
    """Return a sentence for each public name of a backend that is almost one of `DeviceBackend`'s, and for odd units.

    Names that begin with an underscore are the vendor's own. It reads no property, and so runs no code.
    """
    if isinstance(backend, WrappedBackend):
        return slips_in(backend.inner)
    cls, known = type(backend), dir(DeviceBackend)
    own = {name for name in (*dir(cls), *vars(backend)) if not name.startswith("_")}.difference(known)
    public = [name for name in known if not name.startswith("_")]
    names = [
        f"{cls.__name__}.{name}: kdp ignores this unknown name; did you mean {meant!r}? If not, rename it, as _{name}"
        for name in sorted(own)
        if (meant := slip_of(name, public)) is not None
    ]
    times = [
        f"{cls.__name__}.{name} is {value:g}, which is more than an hour; it is in seconds"
        for name in ("poll_interval", "stale_after", "measure_interval")
        if isinstance(value := vars(backend).get(name, vars(cls).get(name)), (int, float)) and value > _HOUR
    ]
    return names + times


def slips_in_variables(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a sentence for each environment variable that is almost a known one. Case counts there."""
    valid = frozenset(known)
    return [
        f"{name}: kdp ignores this unknown variable; did you mean {meant}?"
        for name in sorted(names)
        if name.upper().startswith(("KDP", "KPD")) and not name.startswith("KDP_SET_") and name not in valid
        if (meant := slip_of(name, valid)) is not None
    ]
