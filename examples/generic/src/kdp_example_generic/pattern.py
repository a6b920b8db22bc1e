r"""Which paths of the node a member means: a shell pattern, or a regular expression, directory by directory.

Both are split at the slashes and each part is matched against one name. So it is always known which directories have
to be looked at, also those that do not exist yet: `Pattern.directories` says where to wait for them.

=========================== ==========================================================================
``/dev/dri/renderD*``       a shell pattern: ``*``, ``?`` and ``[...]``, no ``**``
``/dev/tty(USB|ACM)(\d+)``  a regular expression for each name; a group cannot reach across a slash
=========================== ==========================================================================
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import kdp.hardware

_WILD = re.compile(r"[*?\[]")
_REGEX = re.compile(r"[\\^$.|?*+()\[\]{}]")
_DIGITS = re.compile(r"(\d+)")


def by_number(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return a sorting key that puts ``video2`` before ``video10``; no two texts have the same."""
    pieces = _DIGITS.split(text)  # text, number, text, number, ..., text
    return tuple(zip(pieces[::2], [*(int(number) for number in pieces[1::2]), -1], strict=True)), text


@attrs.frozen(kw_only=True)
class Found:
    """A node, file or directory of the host that a member of a group means.

    Attributes:
        path: Its path on the node.
        label: What makes it different from its siblings, for device ids; it stays the same after a reboot.
        captures: What the pattern found out, for placeholders.
        keys: Those of the captures that must be equal in members that belong together.
        sysfs: Its directory in sysfs, if that is known already.
        below: Of a node in a directory that was found: its path below that, as ``/controlC0``.
    """

    path: str
    label: str
    captures: Mapping[str, str] = attrs.field(factory=dict[str, str])
    keys: Mapping[str, str] = attrs.field(factory=dict[str, str])
    sysfs: str | None = None
    below: str = ""


@attrs.frozen
class Part:
    """What one name on the way must be.

    Attributes:
        text: A plain name, a shell pattern or the source of a regular expression.
        regex: What the name must match; None: it is the plain name ``text``.
        shell: The shell pattern that lists the candidates.
    """

    text: str
    regex: re.Pattern[str] | None
    shell: str

    def matches(self, name: str) -> bool:
        """Return whether a name in the directory is meant."""
        return name == self.text if self.regex is None else self.regex.fullmatch(name) is not None


def _real_directory(host: kdp.hardware.Host, path: str) -> str | None:
    try:
        real = host.resolve(path)
    except OSError:  # a loop of links
        return None
    return real if host.is_directory(real) else None


@attrs.frozen
class Pattern:
    """Which paths of the node are meant. Make one with `shell` or `regular`.

    Attributes:
        text: As the admin wrote it.
        parts: What each name on the way must be.
        whole: The regular expression for the path, which knows the captures; None: a shell pattern.
    """

    text: str
    parts: tuple[Part, ...]
    whole: re.Pattern[str] | None = None

    @classmethod
    def shell(cls, text: str) -> Pattern:
        """Return the pattern for a shell pattern.

        Raises:
            ValueError: The text is the rule that it breaks.
        """
        names = cls._names(text)
        if "**" in names:
            raise ValueError("must not have '**': say at which depth the node is")
        if "\\" in text:
            raise ValueError("must not have a backslash: write [*] for a plain star")
        parts: list[Part] = []
        for name in names:
            if _WILD.search(name):
                # As in a shell, a wildcard does not match a leading dot.
                hidden = "" if name.startswith(".") else r"(?!\.)"
                shell = name.replace("[^", "[!")  # Go's way to write it, and many shells'
                parts.append(Part(name, re.compile(hidden + fnmatch.translate(shell)), shell))
            else:
                parts.append(Part(name, None, name))
        return cls(text, tuple(parts))

    @classmethod
    def regular(cls, text: str) -> Pattern:
        """Return the pattern for a regular expression.

        Raises:
            ValueError: The text is the rule that it breaks.
        """
        parts: list[Part] = []
        for name in cls._names(text):
            try:
                regex = re.compile(name)
            except re.error as error:
                raise ValueError(
                    f"must be a regular expression for each name between the slashes, but {name!r} is none: {error}"
                ) from None
            # As for shell patterns, hidden names are meant only by what begins with a dot.
            candidates = ".*" if name.startswith((r"\.", "[.]")) else "*"
            parts.append(Part(name, regex, candidates) if _REGEX.search(name) else Part(name, None, name))
        try:
            whole = re.compile("".join(f"/(?:{part.text})" for part in parts))
        except re.error as error:
            raise ValueError(f"must be a regular expression: {error}") from None
        return cls(text, tuple(parts), whole)

    @staticmethod
    def _names(text: str) -> list[str]:
        if not text.startswith("/"):
            raise ValueError("must be an absolute path")
        names = [name for name in text.split("/") if name not in ("", ".")]
        if not names or ".." in names:
            raise ValueError("must name something below '/' and must not climb with '..'")
        return names

    @property
    def is_plain(self) -> bool:
        """Whether only one path can match."""
        return all(part.regex is None for part in self.parts)

    @property
    def plain(self) -> str:
        """The only path that can match; for one that `is_plain`."""
        return "".join(f"/{part.text}" for part in self.parts)

    @property
    def label(self) -> str:
        """What `Found.label` is of the only path that can match."""
        return _label(self.plain)

    @property
    def keys(self) -> frozenset[str]:
        """The names of the named capture groups."""
        return frozenset() if self.whole is None else frozenset(self.whole.groupindex)

    @property
    def captures(self) -> frozenset[str]:
        """The names under which placeholders find the capture groups: their names, and all by number."""
        return frozenset() if self.whole is None else self.keys | {str(i + 1) for i in range(self.whole.groups)}

    @property
    def base(self) -> str:
        """The directory in which all of it is, for manifests."""
        names = [part.text for part in itertools.takewhile(lambda part: part.regex is None, self.parts[:-1])]
        return "/" + "/".join(names)

    def find(self, host: kdp.hardware.Host) -> list[Found]:
        """Return what is there now, 2 before 10; a link that leads nowhere is not there."""
        paths = [""]
        for part in self.parts:
            paths = [child for path in paths for child in _children(host, path, part)]
        return [self._found(path) for path in sorted(paths, key=by_number) if host.exists(path)]

    def _found(self, path: str) -> Found:
        label = _label(path)
        match = None if self.whole is None else self.whole.fullmatch(path)
        if match is None:
            return Found(path=path, label=label)
        keys = {name: text or "" for name, text in match.groupdict().items()}
        numbered = {str(i): text or "" for i, text in enumerate(match.groups(), start=1)}
        return Found(path=path, label=label, captures=numbered | keys, keys=keys)

    def directories(self, host: kdp.hardware.Host) -> dict[str, set[Part]]:
        """Return the directories of the node, links resolved, in which a name matters: each on the way to a match.

        Any of them may be renamed, or be a link that is made anew. Of a path that does not exist yet it is the parents
        that do.

        Returns:
            For each directory the names that matter in it.
        """
        needed: dict[str, set[Part]] = {}
        paths = [""]
        for part in self.parts:
            below: list[str] = []
            for path in paths:
                real = _real_directory(host, path or "/")
                if real is None:
                    continue
                needed.setdefault(real, set()).add(part)
                below += _children(host, path, part)
            paths = below
        return needed


def _label(path: str) -> str:
    return path.removeprefix("/dev/").strip("/").replace("/", "-")


def _children(host: kdp.hardware.Host, path: str, part: Part) -> Iterable[str]:
    if part.regex is None:
        child = f"{path}/{part.text}"
        return [child] if host.exists(child) else []
    real = _real_directory(host, path or "/")
    if real is None:
        return []
    names = [found.rpartition("/")[2] for found in host.glob(f"{glob.escape(real.rstrip('/'))}/{part.shell}")]
    return [f"{path}/{name}" for name in names if part.matches(name)]
