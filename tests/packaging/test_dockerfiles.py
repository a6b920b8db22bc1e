"""The images of the examples: what their Dockerfiles install is enough for all that their pages tell to do with them."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest

from .conftest import ROOT

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.repository


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
