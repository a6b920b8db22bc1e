"""The images of the examples: what their Dockerfiles install is enough for all that their pages tell to do with them."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.repository


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/Dockerfile")))
def test_an_image_can_be_a_dra_driver_as_well(example: str) -> None:
    """`kdp manifests --mode dra` takes the same image, and a driver speaks to the API server."""
    assert 'pip install --no-cache-dir "/src[cli,kube]" ' in (EXAMPLES / example / "Dockerfile").read_text()
