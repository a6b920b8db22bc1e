"""A JSON document in which every value knows its place, for files that were written for other plugins.

It reads as Go does, for which those files were written: keys match without regard to case, and unknown ones change
nothing. But Go says nothing about those, and a misspelt selector then selects everything; here each is a warning that
names the nearest known key.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, cast

import attrs

import kdp
from kdp.storage import parse_json

if TYPE_CHECKING:
    from collections.abc import Collection


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


@attrs.frozen
class Item:
    """One value of the document and its place.

    Attributes:
        file: The file's name, for messages.
        where: The field, as ``configList[0].rdmaHcaMax``; empty: the whole document.
        value: What JSON found there.
        warnings: What is odd in the document; all its values share it.
    """

    file: str
    where: str
    value: Any
    warnings: list[str]

    def error(self, text: str) -> kdp.ConfigurationError:
        """Return the error to raise: ``text`` behind file and field."""
        return kdp.ConfigurationError(f"{self.file}: {self.where or 'the document'}: {text}")

    def refuse(self, rule: str, example: str) -> kdp.ConfigurationError:
        """Return the error to raise: this value breaks this rule, and that would be valid."""
        return self.error(f"{_shown(self.value)} {rule}; for example {example}")

    def warn(self, text: str) -> None:
        """Note something that does not keep the rest from working."""
        self.warnings.append(f"{self.file}: {self.where or 'the document'}: {text}")

    def text(self, example: str) -> str:
        """Return a text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.refuse("must be a text that is not empty", example)
        return self.value

    def texts(self, example: str) -> tuple[str, ...]:
        """Return a list of texts; ``null`` is none."""
        if self.value is None:
            return ()
        if not isinstance(self.value, list):
            raise self.refuse("must be a list of texts", example)
        return tuple(item.text(example) for item in self.items(example))

    def number(self, low: int, high: int, example: str) -> int:
        """Return a whole number of this range."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not low <= self.value <= high:
            raise self.refuse(f"must be a whole number from {low} to {high}", example)
        return self.value

    def flag(self) -> bool:
        """Return a boolean; ``null`` is false."""
        if self.value is not None and not isinstance(self.value, bool):
            raise self.refuse("must be true or false", "true")
        return bool(self.value)

    def items(self, example: str) -> list[Item]:
        """Return the values of a list."""
        values: object = self.value
        if not isinstance(values, list):
            raise self.refuse("must be a list", example)
        held = cast("list[object]", values)
        return [Item(self.file, f"{self.where}[{i}]", value, self.warnings) for i, value in enumerate(held)]

    def mapping(self, example: str) -> dict[str, Item]:
        """Return the values of an object with any keys."""
        values: object = self.value
        if not isinstance(values, dict):
            raise self.refuse("must be an object", example)
        held = cast("dict[str, object]", values)
        return {
            name: Item(self.file, f"{self.where}.{name}" if self.where else name, value, self.warnings)
            for name, value in held.items()
        }

    def fields(self, known: Collection[str], example: str) -> dict[str, Item]:
        """Return the known values of an object, by the known keys; the others are warned of."""
        lower = {name.lower(): name for name in known}
        found: dict[str, Item] = {}
        for name, item in self.mapping(example).items():
            if name.lower() in lower:
                found[lower[name.lower()]] = item
                continue
            near = difflib.get_close_matches(name.lower(), lower, 1)
            hint = f"did you mean {lower[near[0]]!r}? " if near else ""
            item.warn(f"is an unknown key and changes nothing ({hint}known are {', '.join(sorted(known))})")
        return found


def parse(text: str, file: str) -> Item:
    """Return the document of a JSON text.

    Raises:
        kdp.ConfigurationError: It is no JSON, is cut off, or is too much of something.
    """
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise kdp.ConfigurationError(f"{file}: the JSON is cut off at {place}; give the whole file") from error
        raise kdp.ConfigurationError(f"{file}: is no JSON at {place}: {error.msg}") from error
    except ValueError as error:
        reason = str(error).removeprefix("it ")
        raise kdp.ConfigurationError(f"{file}: {reason}, and can be no configuration") from error
    return Item(file, "", value, [])
