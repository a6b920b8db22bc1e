"""Durations as Kubernetes writes them: ``1h30m``, ``2.5s``, ``300ms``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+\Z", re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Return a duration that is written in this way.

    Raises:
        ValueError: It is not.
    """
    if not _WHOLE.match(text):
        raise ValueError(text)
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
