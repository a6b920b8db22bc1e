"""Texts with placeholders: ``/dev/serial{n}`` becomes ``/dev/serial3``.

Deliberately less than `str.format`: a placeholder is a plain name, so that a configuration file can neither reach into
objects nor fail at run time. ``{{`` and ``}}`` stand for braces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TOKEN = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")


@attrs.frozen
class Template:
    """A text with placeholders.

    Attributes:
        text: As the admin wrote it.
    """

    text: str

    @property
    def fields(self) -> frozenset[str]:
        """The names of the placeholders."""
        return frozenset(match[1] for match in _TOKEN.finditer(self.text) if match[1] is not None)

    def check(self, known: Collection[str]) -> str | None:
        """Return the rule that the text breaks, None if it can be filled with these names."""
        if any(match[0] in "{}" for match in _TOKEN.finditer(self.text)):
            return "has a lone brace: write '{{' or '}}' for a brace that is none of a placeholder"
        unknown = sorted(self.fields - set(known))
        if unknown:
            names = ", ".join(f"{{{name}}}" for name in sorted(known))
            return f"has the unknown placeholder {{{unknown[0]}}}: must be one of {names}"
        return None

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with every placeholder replaced by its value."""

        def replace(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else values[match[1]]

        return _TOKEN.sub(replace, self.text)
