"""The examples' images: what their Dockerfiles install is enough for all that their pages tell to do with them."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.metadata import requires

import pytest

from .conftest import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/Dockerfile")))
def test_an_image_can_be_a_dra_driver_as_well(example: str) -> None:
    """`kdp manifests --mode dra` takes the same image, and a driver speaks to the API server."""
    assert 'pip install --no-cache-dir "/src[cli,kube]" ' in (EXAMPLES / example / "Dockerfile").read_text()


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/Dockerfile")))
def test_an_image_has_no_test_kit(example: str) -> None:
    """What an image installs requires neither the test kit nor the extra that brings it."""
    install = re.search(
        r"^RUN pip install (.*) && rm -r /src$", (EXAMPLES / example / "Dockerfile").read_text(), re.MULTILINE
    )
    assert install is not None
    assert "testkit" not in install[1]
    paths = [word.partition("[") for word in shlex.split(install[1]) if word.startswith("/src")]
    assert paths
    for path, _, chosen in paths:
        project = tomllib.loads((ROOT / path.removeprefix("/src").lstrip("/") / "pyproject.toml").read_text())[
            "project"
        ]
        extras = [extra for extra in chosen.rstrip("]").split(",") if extra]
        required = [
            *project["dependencies"],
            *(line for extra in extras for line in project["optional-dependencies"][extra]),
        ]
        assert not [line for line in required if "testkit" in line or re.match(r"kdp-sdk\[.*testing", line)]


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/Dockerfile")))
def test_an_image_was_another_one_each_day(example: str) -> None:
    """Base image and packages have exact versions, also those that only packages require."""
    text = (EXAMPLES / example / "Dockerfile").read_text()
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?$", text, re.MULTILINE)
    assert " --constraint=/src/examples/constraints.txt " in text
    lines = [line for line in (EXAMPLES / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {line.partition("==")[0] for line in lines if re.fullmatch(r"[a-z0-9-]+==[0-9.]+", line)}
    assert len(pinned) == len(lines)

    project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    todo = [*project["dependencies"], *extras["cli"], *extras["kube"]]
    seen: set[str] = set()
    while todo:
        match = re.match(r"[A-Za-z0-9._-]+", todo.pop())
        assert match is not None
        name = re.sub(r"[-_.]+", "-", match[0]).lower()
        if name not in seen:
            seen.add(name)
            todo += [each for each in requires(name) or () if ";" not in each]
    assert {name for name in seen if not name.startswith("kdp-")} <= pinned
