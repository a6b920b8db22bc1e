"""`backend.py` is all that a vendor must read: a smallest plugin has 10 lines and a scan of sysfs 30.

Counted are lines of code as they stand in the file, imports and all, without blank lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import kdp
import kdp.hardware
from kdp.model.backend import is_overridden

ROOT = Path(__file__).parents[2]

SMALLEST = """
from __future__ import annotations

from pathlib import Path

import kdp


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id=p.name, edits=kdp.ContainerEdits.of_node(p)) for p in Path("/dev").glob("widget*")]


if __name__ == "__main__":
    kdp.run(Widgets())
"""


def lines_of_code(source: str) -> int:
    """Count the lines that hold something besides comments and docstrings."""
    documented = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    ]
    docstrings: set[int] = set()
    for node in documented:
        if ast.get_docstring(node) is not None:
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _load(source: str, name: str) -> type[kdp.DeviceBackend]:
    namespace: dict[str, object] = {"__name__": "a_vendors_module"}
    exec(compile(source, name, "exec"), namespace)  # noqa: S102 - the source is a constant of this file
    backend = namespace[name]
    assert isinstance(backend, type)
    assert issubclass(backend, kdp.DeviceBackend)
    return backend


def test_the_smallest_plugin_has_at_most_ten_lines() -> None:
    count = lines_of_code(SMALLEST)
    print(f"smallest plugin: {count} lines")
    assert count <= 10

    backend = _load(SMALLEST, "Widgets")()
    assert isinstance(backend.discover(), list)
    assert not is_overridden(backend, "allocate")


def test_the_example_minimal_has_at_most_ten_lines() -> None:
    count = lines_of_code((ROOT / "examples/minimal/src/kdp_example_minimal/__init__.py").read_text())
    print(f"examples/minimal: {count} lines")
    assert count <= 10
