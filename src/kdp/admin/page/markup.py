"""`Element`: a piece of the page as a value. It becomes HTML, or JSON of which the page's script makes the same.

Whatever the document says is a text or the value of an attribute, so that there is one place in which it is escaped.
Tags and names of attributes are ours, from the lists that `script.js` knows, too.
"""

from __future__ import annotations

import html
import re
from typing import Final, final

import attrs

from ...errors import printable

LONGEST: Final = 1024
"""Characters of one text."""

TAGS: Final = frozenset(
    (
        *(
            "b",
            "bdi",
            "dd",
            "details",
            "div",
            "dl",
            "dt",
            "figcaption",
            "figure",
            "h1",
            "h2",
            "h3",
            "h4",
            "header",
            "li",
            "main",
        ),
        *("ol", "p", "section", "span", "strong", "summary", "table", "tbody", "td", "th", "thead", "time", "tr", "ul"),
        *("circle", "g", "path", "rect", "svg", "text", "title"),
    )
)

ATTRIBUTES: Final = re.compile(
    r"aria-[a-z]+|class|cx|cy|d|data-label|datetime|height|id|r|role|rx|scope|text-anchor|viewBox|width|x|y"
)
"""None of them can run a script, load anything, or style the page."""


@final
@attrs.frozen
class Element:
    """A piece of the page.

    Attributes:
        tag: One of `TAGS`.
        attributes: Names that `ATTRIBUTES` knows, and their values.
        children: What is in it; a `str` is text.
    """

    tag: str
    attributes: dict[str, str]
    children: tuple[Element | str, ...]

    def as_html(self) -> str:
        """Return it as HTML."""
        attributes = "".join(f' {name}="{_escaped(value)}"' for name, value in self.attributes.items())
        inner = "".join(each.as_html() if isinstance(each, Element) else _escaped(each) for each in self.children)
        return f"<{self.tag}{attributes}>{inner}</{self.tag}>"

    def as_json(self) -> list[object]:
        """Return it as JSON has it: tag, attributes, children."""
        children = (each.as_json() if isinstance(each, Element) else each for each in self.children)
        return [self.tag, self.attributes, *children]


Child = Element | str | None
"""What may stand in an element; None: nothing."""


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: One of `TAGS`.
        *children: What is in it. Texts may be anybody's.
        **attributes: By name, with ``_`` for ``-`` and at the end of ``class_``; values may be anybody's. None: it has
            none of that name.
    """
    assert tag in TAGS, tag
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    assert all(map(ATTRIBUTES.fullmatch, named)), named
    return Element(
        tag,
        {name: _text(str(value)) for name, value in named.items()},
        tuple(_text(each) if isinstance(each, str) else each for each in children if each is not None and each != ""),
    )


def foreign(text: object) -> Element:
    """Return what somebody else has written, whose direction of writing does not reach what is beside it."""
    return element("bdi", str(text))


def _text(text: str) -> str:
    return printable(text, LONGEST)


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
