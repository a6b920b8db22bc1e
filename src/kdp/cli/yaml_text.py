"""Documents as YAML that every reader understands alike.

PyYAML quotes what PyYAML itself would take for something else. kubectl reads a dialect of its own, between YAML 1.1 and
1.2: to it ``y`` is true, ``1e3`` and ``0o17`` are numbers, and ``2001-1-1`` is a date. So only what looks like a word,
a path, a flag or a quantity is left plain.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import yaml

_PLAIN: Final = re.compile(
    r"(?!(y|yes|n|no|on|off|true|false|null)\Z)(--)?[a-z/].*|[0-9]+(m|Mi|%)", re.ASCII | re.IGNORECASE
)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as one text."""
    import yaml

    class Dumper(yaml.SafeDumper):
        @override
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)  # pyright: ignore[reportUnknownMemberType]

    Dumper.add_representer(str, represent)
    return "---\n".join(yaml.dump(each, Dumper=Dumper, sort_keys=False, width=1000) for each in documents)
