"""The devices' names."""

from __future__ import annotations


def ids(count: int) -> list[str]:
    """Return ids as long as a GPU's UUID."""
    return [f"WIDGET-00000000-1111-2222-3333-{number:09}" for number in range(count)]
