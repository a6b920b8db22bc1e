"""JSON-like data of others, read without trust: a value of the wrong kind counts as an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


def mapping_in(value: object) -> Mapping[str, Any]:
    """Return a mapping."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def list_in(value: object) -> list[object]:
    """Return a list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def mappings_in(value: object) -> list[Mapping[str, Any]]:
    """Return a list of mappings."""
    return [mapping_in(each) for each in list_in(value)]


def string_in(value: object) -> str:
    """Return a text."""
    return value if isinstance(value, str) else ""


def number_in(value: object) -> int:
    """Return a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def seconds_since(moment: object, now: float) -> float | None:
    """Return the seconds since a moment that an object of Kubernetes names; None: it names none."""
    from datetime import datetime  # late: a start does not need it

    try:
        return now - datetime.fromisoformat(string_in(moment)).timestamp()
    except (ValueError, OverflowError):
        return None


def metadata_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's metadata."""
    return mapping_in(item.get("metadata"))


def path_of(item: Mapping[str, Any]) -> str:
    """Return namespace and name of an object."""
    return f"{string_in(metadata_of(item).get('namespace'))}/{name_of(item)}"


def name_of(item: Mapping[str, Any]) -> str:
    """Return an object's name."""
    return string_in(metadata_of(item).get("name"))
