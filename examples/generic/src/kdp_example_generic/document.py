"""A YAML document in which every value knows its place, so that an error can name file, line and field.

The document is composed but never constructed: every scalar stays the text that the admin wrote. That keeps YAML 1.1's
surprises out (``0403`` is no octal number, ``no`` is no boolean, no object is ever made), and shows duplicate keys.
Aliases, tags, and deep nesting are refused.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import attrs
import yaml

import kdp
from kdp.command.yaml_reading import compose

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@attrs.frozen
class Item:
    """One value of the document and its place.

    Attributes:
        file: The file's name, for messages.
        where: The field, as ``resources[0].name``; empty for the whole document.
        node: What YAML found there.
    """

    file: str
    where: str
    node: yaml.Node

    @property
    def line(self) -> int:
        """The line of the file, the first is 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def shown(self) -> str:
        """The value as a message shows it."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        text = str(self.node.value)
        return repr(text if len(text) <= 100 else f"{text[:100]}...")

    def error(self, text: str) -> kdp.ConfigurationError:
        """Return the error to raise: ``text`` behind file, line and field."""
        return kdp.ConfigurationError(f"{self.file}, line {self.line}: {self.where or 'the document'}: {text}")

    def refuse(self, rule: str, example: str) -> kdp.ConfigurationError:
        """Return the error to raise: this value breaks this rule, and that would be valid."""
        return self.error(f"{self.shown} {rule}; for example {example}")

    def text(self, example: str) -> str:
        """Return a text that is not empty."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self.refuse("must be a text that is not empty", example)
        return str(self.node.value)

    def any_text(self, example: str) -> str:
        """Return a text that may be empty."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.refuse("must be a text", example)
        return str(self.node.value)

    def number(self, maximum: int, example: str) -> int:
        """Return a whole number from 1 to ``maximum``."""
        text = str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
            raise self.refuse(f"must be a whole number from 1 to {maximum}", example)
        return int(text)

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.value not in ("true", "false"):
            raise self.refuse("must be true or false", "true")
        return bool(self.node.value == "true")

    def choice(self, *choices: str) -> str:
        """Return one of these texts."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.value not in choices:
            raise self.refuse(f"must be {' or '.join(choices)}", choices[0])
        return str(self.node.value)

    def items(self, example: str) -> list[Item]:
        """Return the values of a list that is not empty."""
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            raise self.refuse("must be a list that is not empty", example)
        return [Item(self.file, f"{self.where}[{i}]", node) for i, node in enumerate(self.node.value)]

    def _pairs(self, example: str) -> Iterator[tuple[str, Item]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refuse("must be a mapping", example)
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Item(self.file, self.where, key).refuse("is not a key: must be a text", example)
            name = str(key.value)
            yield name, Item(self.file, f"{self.where}.{name}" if self.where else name, value)

    def mapping(self, example: str) -> dict[str, Item]:
        """Return the values of a mapping with any keys, each at most once."""
        found: dict[str, Item] = {}
        for name, item in self._pairs(example):
            if name in found:
                raise item.error(f"is there twice (first in line {found[name].line}); remove one")
            found[name] = item
        return found

    def fields(self, known: Collection[str], example: str) -> dict[str, Item]:
        """Return the values of a mapping whose keys must all be known."""
        found = self.mapping(example)
        for name, item in found.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise item.error(f"is an unknown field{hint}; known are {', '.join(sorted(known))}")
        return found


def parse(text: str, file: str) -> Item:
    """Return the only document of a YAML text.

    Raises:
        kdp.ConfigurationError: It is no YAML, is empty, or has several documents.
    """
    try:
        node = compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise kdp.ConfigurationError(f"{file}{line}: must be one YAML document: {error.problem}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise kdp.ConfigurationError(f"{file}: must be one YAML document: {reason}") from error
    if node is None:
        raise kdp.ConfigurationError(f"{file}: is empty; must be a mapping with 'resources', as in the configs/ folder")
    return Item(file, "", node)
