"""Checks the types of the Python on the pages, with ``mypy --strict`` and pyright; ``make types`` runs it.

Readers copy these blocks into projects that check their types. A block with a name is the file of that name, and the
other blocks of a page are one module, as they are one namespace in the tests. Errors name the line on the page.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs.blocks import blocks_of

PAGES: Final = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
OUT: Final = ROOT / "build/blocks"


def main() -> int:
    """Write the blocks as packages, one for each page, and check them; return 1 if anything is wrong."""
    shutil.rmtree(OUT, ignore_errors=True)
    pages = {name: page for page in PAGES if (name := _write(page))}
    (OUT / "pyrightconfig.json").write_text(json.dumps({"pythonVersion": "3.11", "pythonPlatform": "Linux"}))
    python = ("--python-executable", sys.executable)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *python, "--python-version=3.11", *pages]
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    failed = False
    for command in (mypy, pyright):
        done = subprocess.run(command, cwd=OUT, capture_output=True, text=True, check=False)
        failed |= done.returncode != 0
        said = re.sub(
            r"^ *(?:\S*/)?(\w+)/\w+\.py(?=:\d)", lambda found: str(pages[found[1]]), done.stdout, flags=re.MULTILINE
        )
        print(done.stderr + said, end="")
    return int(failed)


def _write(page: Path) -> str | None:
    """Write a page's blocks into a package, each line where the page has it; return its name; None: there are none."""
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    package = OUT / page.stem.replace("-", "_").lower()
    texts: dict[str, list[str]] = {}
    for block in blocks:
        name = block.marks.get("file", "page.py")
        if name in texts and name != "page.py":  # the page shows the file again, with more in it
            texts[f"earlier_{block.line}.py"] = texts.pop(name)
        lines = texts.setdefault(name, [])
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    if not blocks:
        return None
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    modules = [name.removesuffix(".py") for name in texts if name != "page.py"]
    local = re.compile(rf"^(from) ({'|'.join(modules)}) import|^import ({'|'.join(modules)})$", re.MULTILINE)
    for name, lines in texts.items():
        if name == "page.py":
            lines[0] = "; ".join(f"from .{module} import *" for module in modules)
        text = "\n".join([*lines, ""])
        if modules:
            text = local.sub(lambda m: f"from .{m[2]} import" if m[1] else f"from . import {m[3]}", text)
        (package / name).write_text(text)
    return package.name


if __name__ == "__main__":
    raise SystemExit(main())
