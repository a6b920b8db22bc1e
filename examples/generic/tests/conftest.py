from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import attrs
import pytest

import kdp.hardware
from kdp_example_generic import Generic

_MAJOR = 500
"""A major number that no driver of this machine has."""


@attrs.define
class Tree:
    """A node's files below a directory of the test. Device nodes are real where we may make them (CAP_MKNOD)."""

    root: Path
    host: kdp.hardware.Host
    real_nodes: bool
    stand_ins: dict[str, Literal["char", "block"]]
    minors: Iterator[int] = attrs.field(factory=itertools.count)

    def _place(self, path: str) -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def node(self, *paths: str, number: tuple[int, int] | None = None, kind: Literal["char", "block"] = "char") -> None:
        """Make device nodes with these numbers, by default each with its own: two with one number are one device."""
        for path in paths:
            place = self._place(path)
            if self.real_nodes:
                device = os.makedev(*(number or (_MAJOR, next(self.minors))))
                os.mknod(place, 0o600 | (stat.S_IFCHR if kind == "char" else stat.S_IFBLK), device)
            else:
                place.touch()
                self.stand_ins[path] = kind

    def file(self, path: str, text: str = "") -> None:
        self._place(path).write_text(text)

    def directory(self, path: str) -> None:
        self._place(path).mkdir(parents=True)

    def link(self, path: str, target: str) -> None:
        self._place(path).symlink_to(target)

    def remove(self, *paths: str) -> None:
        for path in paths:
            self._place(path).unlink()
            self.stand_ins.pop(path, None)


def _may_make_nodes(directory: Path) -> bool:
    try:
        os.mknod(directory / "probe", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        return False
    (directory / "probe").unlink()
    return True


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    root = tmp_path / "node"
    root.mkdir()
    made = Tree(root, kdp.hardware.Host(root), _may_make_nodes(tmp_path), {})
    if not made.real_nodes:
        # Without the right to make nodes, plain files stand in for them, and only the question "is it a device" is
        # answered from our own list; finding, links and everything else is real.
        def device_type(self: kdp.hardware.Host, path: str | os.PathLike[str]) -> Literal["char", "block"] | None:
            return made.stand_ins.get(self.resolve(path)) if self.exists(path) else None

        monkeypatch.setattr(kdp.hardware.Host, "device_type", device_type)
    return made


@pytest.fixture
def backend(tree: Tree, tmp_path: Path) -> Callable[[str], Generic]:
    """Return the backend for a configuration's text, on the tree."""

    def make(text: str) -> Generic:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return Generic(file, tree.host)

    return make


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Report a measured time in milliseconds: in the output of ``-s``, and in a summary where one is made."""

    def report(name: str, milliseconds: float) -> None:
        text = f"generic: {name}: {milliseconds:.4g} ms"
        record_property("figure", text)
        print(text)

    return report
