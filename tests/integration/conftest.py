"""Leaves tests under older kubelets to `make test-slow` if `make test` has them under the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from kdp.testing import DEFAULT_PROFILE, PROFILES

# For the reason in tests/node/conftest.py: `make floors` hung for ever behind a test that had failed.
grpc.aio.init_grpc_aio()

_HERE: Final = Path(__file__).parent
_OLDER: Final = {*PROFILES} - {DEFAULT_PROFILE}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test under an older profile as slow if the same test is there under the newest one."""
    found = [(item, *_told(item)) for item in items if _HERE in item.path.parents]
    under_the_newest = {test for _, profiles, test in found if DEFAULT_PROFILE in profiles}
    for item, profiles, test in found:
        if profiles & _OLDER and test in under_the_newest:
            item.add_marker(pytest.mark.slow)


def _told(item: pytest.Item) -> tuple[set[str], tuple[Any, ...]]:
    """Return the profiles among a test's parameters, and which test it is but for them."""
    spec = getattr(item, "callspec", None)
    names = {name: getattr(value, "name", value) for name, value in spec.params.items()} if spec is not None else {}
    profiles = {name: value for name, value in names.items() if isinstance(value, str) and value in PROFILES}
    rest = tuple((name, repr(value)) for name, value in names.items() if name not in profiles)
    return {*profiles.values()}, (item.path, getattr(item, "originalname", item.name), rest)
