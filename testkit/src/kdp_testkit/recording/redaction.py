"""What is left out of a recording, and how two things are compared of which one was left out.

A value that is left out becomes a stand-in with a number: equal values get equal stand-ins, so a recording still shows
that two containers were given the same path. The names of environment variables stay, and so do container paths, unless
one is the host's path itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

KINDS: Final = ("env", "paths")
"""What can be left out."""

_PATH_IN_TEXT = re.compile(r"(?<![\w/])(?:/[\w.+@:%-]*[\w+@%-])+")
_VALUE_IN_TEXT = re.compile(r"'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|\w=(?P<assigned>[^\s,;'\"]+)")
_SHORTEST = 4
_STAND_IN = re.compile(r"redacted-env-\d+|/redacted/path-\d+")


class Redaction:
    """Replaces what is left out, consistently for one recording.

    Args:
        kinds: ``env``: values of environment variables in Allocate's answers; ``paths``: paths of the host in them, and
            whatever looks like a path in the text of an error.
    """

    def __init__(self, kinds: Collection[str] = ()) -> None:
        self.kinds = frozenset(kinds)
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._ids: set[str] = set()

    def _stand_in(self, kind: str, value: str) -> str:
        number = sum(1 for known, _ in self._stand_ins if known == kind) + 1
        text = f"redacted-env-{number}" if kind == "env" else f"/redacted/path-{number}"
        return self._stand_ins.setdefault((kind, value), text)

    def content(self, method: str, content: dict[str, Any], *, answer: bool) -> dict[str, Any]:
        """Return what a line says of a message, without what is left out."""
        if method == "ListAndWatch" and answer:
            self._ids.update(device["ID"] for device in content.get("message", {}).get("devices", ()))
        if not self.kinds or method != "Allocate" or not answer:
            return content
        # The bytes would tell everything; without them and without a message nothing is left but that there was one.
        message: dict[str, Any] = content.get("message", {"container_responses": []})
        return {"message": {**message, "container_responses": [self._reply(r) for r in message["container_responses"]]}}

    def _reply(self, reply: dict[str, Any]) -> dict[str, Any]:
        reply = dict(reply)
        if "env" in self.kinds:
            reply["envs"] = {name: self._stand_in("env", value) for name, value in reply["envs"].items()}
        if "paths" in self.kinds:
            reply["mounts"] = [self._spec(mount) for mount in reply["mounts"]]
            reply["devices"] = [self._spec(node) for node in reply["devices"]]
        return {name: value if name == "envs" else self.scrub(value) for name, value in reply.items()}

    def _spec(self, spec: dict[str, Any]) -> dict[str, Any]:
        host = self._stand_in("paths", spec["host_path"])
        same = spec["container_path"] == spec["host_path"]
        return {**spec, "container_path": host if same else spec["container_path"], "host_path": host}

    def text(self, text: str) -> str:
        """Return the text of an error without values of the environment and without paths.

        An error may quote a value that no answer has shown: what is quoted or assigned in it counts as a value.
        """
        if "env" in self.kinds:
            text = self.scrub(text)
            text = _VALUE_IN_TEXT.sub(self._of_text, text)
        if "paths" in self.kinds:
            text = _PATH_IN_TEXT.sub(lambda found: self._path(found[0]), text)
        return text

    def _path(self, path: str) -> str:
        return path if _STAND_IN.fullmatch(path) else self._stand_in("paths", path)

    def _of_text(self, found: re.Match[str]) -> str:
        value = found["single"] or found["double"] or found["assigned"]
        if value in self._ids or _STAND_IN.search(value):
            return found[0]
        return found[0].replace(value, self._stand_in("env", value))

    def scrub(self, value: Any) -> Any:
        """Return a text, or a list or mapping of texts, without the known values of the environment.

        A device's id stays: a replay needs it. So do values of less than four characters, which are parts of words.
        """
        if isinstance(value, Mapping):
            return {key: self.scrub(held) for key, held in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.scrub(held) for held in cast("Collection[Any]", value)]
        if not isinstance(value, str):
            return value
        known = {v: to for (kind, v), to in self._stand_ins.items() if kind == "env" and len(v) >= _SHORTEST}
        known = {v: to for v, to in known.items() if v not in self._ids}
        if not known:
            return value
        longest_first = sorted(known, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), lambda found: known[found[0]], value)


class Bindings:
    """Compares texts of a recording with texts of now: a stand-in is equal to whatever it has stood for first.

    Args:
        redacted: What was left out of the recording; nothing: texts are compared as they are.
    """

    def __init__(self, redacted: Collection[str] = ()) -> None:
        self._is_active = bool(redacted)
        self._values: dict[str, str] = {}

    def same(self, recorded: Any, now: Any) -> bool:
        """Return whether two values are the same, and remember what the stand-ins in them stand for."""
        bound = dict(self._values)
        if self._same(recorded, now, bound):
            self._values = bound
            return True
        return False

    def _same(self, recorded: Any, now: Any, bound: dict[str, str]) -> bool:
        if isinstance(recorded, Mapping) and isinstance(now, Mapping):
            before, after = cast("Mapping[str, Any]", recorded), cast("Mapping[str, Any]", now)
            return before.keys() == after.keys() and all(self._same(before[k], after[k], bound) for k in before)
        if not (self._is_active and isinstance(recorded, str) and isinstance(now, str)):
            return bool(recorded == now)
        names = _STAND_IN.findall(recorded)
        if not names:
            return recorded == now
        pattern = "".join(map(_group, re.split(f"({_STAND_IN.pattern})", recorded)))
        found = re.fullmatch(pattern, now, re.DOTALL)
        if found is None:
            return False
        for name, value in zip(names, found.groups(), strict=True):
            others = [held for held, known in bound.items() if known == value and held != name and held[0] == name[0]]
            if bound.setdefault(name, value) != value or others:
                return False
        return True


def _group(piece: str) -> str:
    if not _STAND_IN.fullmatch(piece):
        return re.escape(piece)
    return "(/.*?)" if piece.startswith("/") else "(.*)"
