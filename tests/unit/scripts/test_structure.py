"""`make structure` on packages that are made up here: what it counts, and what it draws."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
LAYERS = ["shop", "store | office", "base"]
SVG = "{http://www.w3.org/2000/svg}"

pytestmark = pytest.mark.repository

Package = Callable[[dict[str, str]], str]


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    """scripts/structure.py as a module."""
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts/structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module  # attrs looks a class's module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Write a package of these files, below its root, and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write(files: dict[str, str]) -> str:
        name = f"made_up_{abs(hash(tmp_path))}"
        for file, text in {"__init__.py": "", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text.replace("PACKAGE", name))
        return name

    return write


SOUND = {
    "shop.py": "from PACKAGE.store import shelf\nfrom PACKAGE import base\n",
    "store/shelf.py": "from PACKAGE import base\n",
    "office.py": "from PACKAGE import base\n",
    "base.py": "",
}


def test_rooms_stand_above_what_they_import(structure: ModuleType, package: Package) -> None:
    found = structure.examine(package(SOUND), layers=LAYERS)

    assert found.floors == (("base",), ("office", "store"), ("shop",))
    assert found.arrows == {("shop", "store"), ("shop", "base"), ("store", "base"), ("office", "base")}
    assert found.rooms == {"shop": 2, "store": 1, "office": 1, "base": 0}
    assert found.is_sound


@pytest.mark.parametrize(
    "hidden", ["def later() -> None:\n    {}\n", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"]
)
def test_a_circle_of_files_is_found_also_where_an_import_is_hidden(
    structure: ModuleType, package: Package, hidden: str
) -> None:
    back = hidden.format("from PACKAGE.store import shelf")
    name = package({**SOUND, "store/ledger.py": back, "store/shelf.py": "from PACKAGE.store import ledger\n"})

    found = structure.examine(name, layers=LAYERS)

    assert found.circles == ((f"{name}.store.ledger", f"{name}.store.shelf"),)
    assert not found.upward
    assert not found.is_sound
    assert f"circle: {name}.store.ledger, {name}.store.shelf" in found.report()


@pytest.mark.parametrize(
    ("file", "text", "arrow"),
    [
        ("base.py", "from PACKAGE import shop\n", ("base", "shop")),
        ("office.py", "from PACKAGE.store import shelf\n", ("office", "store")),
    ],
    ids=["a lower layer imports a higher one", "strangers"],
)
def test_an_arrow_that_breaks_the_declared_layers_runs_back_up(
    structure: ModuleType, package: Package, file: str, text: str, arrow: tuple[str, str]
) -> None:
    found = structure.examine(package({**SOUND, "shop.py": "", file: text}), layers=LAYERS)

    assert found.upward == {arrow}
    assert not found.is_sound
    assert f"back up: {arrow[0]} -> {arrow[1]}" in found.report()


def test_without_declared_layers_an_arrow_that_closes_a_circle_of_rooms_runs_back_up(
    structure: ModuleType, package: Package
) -> None:
    found = structure.examine(package({**SOUND, "base.py": "def later():\n    from PACKAGE import shop\n"}))

    assert len(found.upward) == 1
    assert found.upward <= found.arrows


def test_imports_for_type_checkers_only_are_counted_apart(structure: ModuleType, package: Package) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from PACKAGE import base\n"

    found = structure.examine(package({**SOUND, "office.py": text}), layers=LAYERS)

    assert found.typing == {("office", "base")}


def test_the_drawing_has_each_room_with_its_lines_and_no_two_boxes_overlap(
    structure: ModuleType, package: Package
) -> None:
    name = package(
        {
            **SOUND,
            "store/ledger.py": "from PACKAGE.store import shelf\n",
            "store/shelf.py": "import PACKAGE.store.ledger\n",
        }
    )
    svg = ElementTree.fromstring(structure.drawing([structure.examine(name)]))  # noqa: S314 - written just now

    texts = [text.text for text in svg.iter(f"{SVG}text")]
    boxes = [box for box in svg.iter(f"{SVG}rect") if "class" in box.attrib]
    places = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes]

    assert {"shop", "store", "office", "base", "2 lines"} <= {*texts}
    assert [box.attrib["class"] for box in boxes].count("circle") == 1
    width, height = structure.SIZE
    assert not [
        (one, other)
        for one in places
        for other in places
        if one < other and abs(one[0] - other[0]) < width and abs(one[1] - other[1]) < height
    ]


def test_the_layers_are_those_of_the_project(structure: ModuleType) -> None:
    assert "supervision" in structure.declared(ROOT / "pyproject.toml")["kdp"]


def test_a_room_that_is_none_is_named_with_those_that_are(
    structure: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        structure.main(["--room", "nosuch"])
    assert ended.value.code == 2
    assert "there is no room 'nosuch' in kdp; there are allocation, cdi," in capsys.readouterr().err
