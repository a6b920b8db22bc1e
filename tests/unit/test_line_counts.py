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

SYSFS_SCAN = '''
from __future__ import annotations

import kdp
import kdp.hardware


class RenderNodes(kdp.DeviceBackend):
    """Graphics cards by their PCI address, with memory node, vendor and health from sysfs."""

    resource = "example.com/gpu"

    def __init__(self, host: kdp.hardware.Host) -> None:
        self.host = host

    def discover(self) -> list[kdp.Device]:
        return [self._device(entry) for entry in self.host.directories("/sys/class/drm/renderD*")]

    def _device(self, entry: kdp.hardware.Directory) -> kdp.Device:
        card = entry.child("device")
        enabled = card.flag("enable")
        reason = enabled.problem or "the card is disabled"
        return kdp.Device(
            id=card.name,
            health=kdp.Health.healthy() if enabled.value else kdp.Health.unhealthy(reason),
            numa_nodes=card.numa_nodes,
            edits=kdp.ContainerEdits.of_node(f"/dev/dri/{entry.name}"),
            attributes={"vendor": card.text("vendor").or_else("unknown")},
        )


if __name__ == "__main__":
    kdp.run(RenderNodes(kdp.hardware.Host()))
'''


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


def test_a_scan_of_sysfs_has_at_most_thirty_lines(tmp_path: Path) -> None:
    count = lines_of_code(SYSFS_SCAN)
    print(f"sysfs scan: {count} lines")
    assert count <= 30

    for number, (address, enabled) in enumerate({"0000:03:00.0": "1", "0000:41:00.0": "0"}.items(), start=128):
        card = tmp_path / "sys/devices/pci0000:00" / address
        (card / "drm" / f"renderD{number}").mkdir(parents=True)
        for name, text in {"enable": enabled, "numa_node": "-1" if enabled == "0" else "1", "vendor": "0x1002"}.items():
            (card / name).write_text(f"{text}\n")
        link = tmp_path / f"sys/class/drm/renderD{number}/device"
        link.parent.mkdir(parents=True)
        link.symlink_to(f"/sys/devices/pci0000:00/{address}")  # an absolute link stays inside the root

    make = _load(SYSFS_SCAN, "RenderNodes")
    devices = make(host=kdp.hardware.Host(tmp_path)).discover()  # type: ignore[call-arg]

    assert isinstance(devices, list)
    healthy, disabled = devices
    assert healthy == kdp.Device(
        id="0000:03:00.0",
        numa_nodes=(1,),
        edits=kdp.ContainerEdits.of_node("/dev/dri/renderD128"),
        attributes={"vendor": "0x1002"},
    )
    assert (disabled.id, disabled.numa_nodes) == ("0000:41:00.0", ())
    assert str(disabled.health) == "Unhealthy (the card is disabled)"
