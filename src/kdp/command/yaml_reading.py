"""YAML texts of anybody as nodes or plain values: the part of YAML that all readers understand alike.

PyYAML reads YAML 1.1, in which ``1:30`` is 90, ``0403`` is 259, ``no`` is false, and ``2026-01-01`` is an object. Here,
a scalar without quotes is a number, ``true``, ``false``, or ``null`` only if YAML 1.2 and 1.1 agree. Otherwise it is
text.

Refused are tags, keys that are there twice, and deep nesting; so are aliases, with which 400 bytes become gigabytes,
unless a caller takes them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml
from typing_extensions import override

from ..model.names import is_utf8
from ..storage.documents import MAX_DEPTH, check_depth, parse_json, unique

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compose", "parse_yaml"]

_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...]] = (
    (re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII), lambda text: parse_json(text.removeprefix("+"))),
    (re.compile(r"0x[0-9a-fA-F]{1,256}", re.ASCII), lambda text: int(text, 16)),
    (
        re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+][0-9]+)?|[eE][-+][0-9]+)", re.ASCII),
        lambda text: parse_json(text.removeprefix("+")),
    ),
)


_MOST_VALUES: Final = 100_000
"""In a text with aliases: ten times as many as the largest file needs."""


class _Loader(yaml.BaseLoader):
    """Composes nodes; what has no tag of its own gets none."""

    _depth = 0
    takes_aliases = False

    @override
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        return ""

    @override
    def get_mark(self) -> yaml.Mark:
        loader: Any = self
        return yaml.Mark(loader.name, loader.index, loader.line, loader.column, None, 0)  # the line may hold a secret

    @override
    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        loader: Any = self
        event: Any = loader.peek_event()
        tag: str | None = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent) and not self.takes_aliases:
            problem = "an alias repeats another value; write the value out, or put a text with * in quotes"
        elif tag not in (None, "!", "tag:yaml.org,2002:str"):
            problem = "a tag makes an object; leave it out, or put a text with ! in quotes"
        elif self._depth >= MAX_DEPTH:
            problem = "it is nested too deeply"
        else:
            self._depth += 1
            node: yaml.Node | None = super().compose_node(parent, index)
            self._depth -= 1
            return node
        mark: Any = event.start_mark
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def compose(text: str) -> yaml.Node | None:
    """Return the node of the only document of a YAML text, a tree without aliases; None: the text is empty.

    The value of a scalar stays the text that was written; `parse_yaml` says what it means.

    Raises:
        yaml.MarkedYAMLError: The text is not YAML, or has an alias, a tag, or deep nesting. ``problem_mark`` says
            where.
        yaml.YAMLError: It has a character that YAML does not allow.
    """
    return _composed(text, aliases=False)


def _composed(text: str, *, aliases: bool) -> yaml.Node | None:
    loader = _Loader(text)
    loader.takes_aliases = aliases
    try:
        return loader.get_single_node()
    except RecursionError:  # a caller that is deep in the stack itself
        raise yaml.YAMLError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _number(text: str) -> Any:
    return next((make(text) for pattern, make in _NUMBERS if pattern.fullmatch(text)), text)


def parse_yaml(text: str, *, number: Callable[[str], Any] = _number, aliases: bool = False) -> Any:
    """Return the value of the only document of a YAML text: mappings, lists, texts, numbers, booleans, and None.

    Keys are texts, as in JSON. An empty text is None.

    Args:
        text: The YAML text.
        number: Returns the number that a scalar without quotes is, or the text; for a format with rules of its own.
        aliases: Whether an alias may repeat a value.

    Raises:
        ValueError: The text is not YAML, or has one of what the module's docstring lists as refused. It is one line.
    """
    try:
        node = _composed(text, aliases=aliases)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).replace('in "<unicode string>", ', "at ").split())) from None
    value = None if node is None else _Values(number, _MOST_VALUES if aliases else None).of(node)
    check_depth(value)
    return value


class _Values:
    """Makes values of nodes, of which some may be each other's parts: it stops where that goes on for too long."""

    def __init__(self, number: Callable[[str], Any], most: int | None) -> None:
        self._number = number
        self._most = most
        self._made = 0

    def of(self, node: yaml.Node, depth: int = 0) -> Any:
        self._made += 1
        if self._most is not None and (self._made > self._most or depth > MAX_DEPTH):
            raise ValueError("its aliases make it too large; write the values out")
        if isinstance(node, yaml.SequenceNode):
            return [self.of(each, depth + 1) for each in node.value]
        if isinstance(node, yaml.MappingNode):
            return unique([(_key(key), self.of(value, depth + 1)) for key, value in node.value])
        text = _text(node)
        if getattr(node, "style", None) is not None or node.tag:
            return text
        return _WORDS[text] if text in _WORDS else self._number(text)


def _text(node: yaml.Node) -> str:
    text = str(node.value)
    if is_utf8(text):
        return text
    # JSON escapes letters beyond U+FFFF as two, which PyYAML does not put together.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _key(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return _text(node)
    raise ValueError(f"line {node.start_mark.line + 1}: a key must be text, not a list or a mapping")
