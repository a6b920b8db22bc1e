"""One line installs a reference backend: the extra, the distribution and the entry point have one name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("fpga", "nvidia-gpu", "rdma")


def project(folder: Path) -> dict[str, Any]:
    """What a pyproject.toml says of its distribution."""
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


@pytest.mark.parametrize("name", BACKENDS)
def test_an_extra_installs_the_backend_of_its_name_and_the_command(name: str) -> None:
    whole = project(ROOT)
    backend = project(ROOT / "examples" / name.replace("-", "_"))

    assert whole["optional-dependencies"][name] == [f"{backend['name']}=={whole['version']}"]
    assert (backend["name"], backend["version"]) == (f"kdp-{name}", whole["version"])
    assert [*backend["entry-points"]["kdp.backends"]] == [name]
    assert "kdp-sdk[cli]" in backend["dependencies"]


@pytest.mark.parametrize("name", BACKENDS)
def test_its_readme_and_its_page_tell_that_line(name: str) -> None:
    for page in (ROOT / "examples" / name.replace("-", "_") / "README.md", ROOT / f"docs/backends/{name}.md"):
        assert f'`pip install "kdp-sdk[{name},testing]"`' in page.read_text(), page
        assert f"kdp backends {name}" in page.read_text(), page
