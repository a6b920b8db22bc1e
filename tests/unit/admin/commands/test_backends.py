from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdp.command.app import kdp

MODULE = '''
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import kdp
from kdp.hardware import Host

if TYPE_CHECKING:
    from acme_missing import Decimal

print("a vendor's module greets")

class Widgets(kdp.DeviceBackend):
    """Widgets of [bold]steel[/], ``one``, `two`, :mod:`three`, and :py:class:`~four.Five`.

    With more words below.
    """

    def __init__(
        self, host: Host, path: Path, *, mode: Literal["a", "b"] = "a", ids: tuple[str, ...] = ("x", "y"),
        limit: float | None = None, loud: bool = False, price: Decimal = 0, plain="p", **more: str
    ) -> None:
        raise AssertionError("nobody makes an object")

    def discover(self) -> list[kdp.Device]:
        return []

class Documented(Widgets):
    """Cards.

    Args:
        path: The folder of
            ``cards``.
    """

class Silent(kdp.DeviceBackend):
    def discover(self) -> list[kdp.Device]:
        return []
'''


class Distribution(importlib.metadata.PathDistribution):
    """One that has a name and a version, and no files."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    name = "acme-widgets"
    version = "1.2.3"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "acme_for_a_test.py").write_text(MODULE)
    (tmp_path / "acme_broken_for_a_test.py").write_text("raise RuntimeError('no\\nlibrary')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("acme_for_a_test", "acme_broken_for_a_test"):
        sys.modules.pop(name, None)


def backends(monkeypatch: pytest.MonkeyPatch, points: dict[str, str], *arguments: str) -> Result:
    """Run the command where these entry points are installed."""
    brought = [
        importlib.metadata.EntryPoint(name, value, "kdp.backends")._for(Distribution())  # type: ignore[attr-defined]
        for name, value in points.items()
    ]

    def entry_points(*, group: str, **_name: str) -> list[Any]:
        return brought if group == "kdp.backends" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return CliRunner().invoke(kdp, ["backends", *arguments], prog_name="kdp")


WIDGETS = {"widgets": "acme_for_a_test:Widgets", "silent": "acme_for_a_test:Silent"}


def test_the_list_has_name_class_distribution_and_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = backends(monkeypatch, WIDGETS)

    assert result.exit_code == 0, result.output
    lines = [line.split("  ") for line in result.stdout.splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in lines] == [
        ["NAME", "CLASS", "DISTRIBUTION", "WHAT IT IS"],
        ["silent", "acme_for_a_test:Silent", "acme-widgets 1.2.3"],
        [
            "widgets",
            "acme_for_a_test:Widgets",
            "acme-widgets 1.2.3",
            "Widgets of [bold]steel[/], one, two, three, and four.Five.",
        ],
    ]
    assert "a vendor's module greets" in result.stderr


def test_one_backend_is_shown_with_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    result = backends(monkeypatch, WIDGETS, "widgets")

    assert result.exit_code == 0, result.output
    first, summary, *table = result.stdout.splitlines()
    assert first == "widgets: acme_for_a_test:Widgets of acme-widgets 1.2.3"
    assert summary == "Widgets of [bold]steel[/], one, two, three, and four.Five."
    assert [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table] == [
        ["PARAMETER", "TYPE", "DEFAULT"],
        ["path", "a path", "(required)"],
        ["mode", "one of a, b", "a"],
        ["ids", "a list, with commas, of text (str)", "x,y"],
        ["limit", "a number (float) or none", "none"],
        ["loud", "true or false (bool)", "false"],
        ["price", "Decimal", "0"],
        ["plain", "text (str)", "p"],
        ["**more", "text (str)", "none"],
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("acme_broken_for_a_test:Widgets", "loading it failed with RuntimeError: no library ("),
        ("acme_for_a_test:Literal", "this is an object of type "),
    ],
)
def test_a_broken_entry_point_is_one_line_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    points = {**WIDGETS, "broken": value}

    listed = backends(monkeypatch, points)

    assert listed.exit_code == 1
    assert "Widgets of" in listed.stdout
    last = listed.stdout.splitlines()[-1]
    assert last.startswith(f"broken (acme-widgets 1.2.3) cannot be loaded: target 'broken': {reason}")
    assert "Traceback" not in listed.output

    as_json = json.loads(backends(monkeypatch, points, "--format", "json").stdout)["backends"][0]
    assert (as_json["name"], as_json["parameters"]) == ("broken", [])
    assert reason in as_json["error"]

    asked = backends(monkeypatch, points, "broken")
    assert asked.exit_code == 2
    assert asked.stderr.splitlines()[-1].startswith(f"kdp backends: target 'broken': {reason}")


def test_a_name_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = backends(monkeypatch, WIDGETS, "gadgets")

    assert result.exit_code == 2
    assert "installed in group kdp.backends: silent, widgets" in result.stderr


def test_a_parameter_was_shown_without_what_its_docstring_says(monkeypatch: pytest.MonkeyPatch) -> None:
    result = backends(monkeypatch, {"documented": "acme_for_a_test:Documented"}, "documented")
    [line] = [line for line in result.stdout.splitlines() if line.startswith("path ")]
    assert line.split("  ")[-1].strip() == "The folder of cards."
