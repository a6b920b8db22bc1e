"""A directory that may not be read is an error, never an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.nobody import as_nobody
from typing_extensions import override

import kdp
from kdp.hardware import Host
from kdp.hardware.capture import siblings
from kdp.supervision.discover import discover_once


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        closed = Path(directory, "widgets")
        closed.mkdir(mode=0o755)
        (closed / "w0").mkdir()
        closed.chmod(0)
        yield Path(directory)
        closed.chmod(0o755)


@pytest.mark.parametrize("pattern", ["w?", "**"])
@pytest.mark.parametrize("with_root", [False, True])
def test_a_directory_that_may_not_be_read_is_not_empty(place: Path, pattern: str, with_root: bool) -> None:
    host, above = (Host(place), "") if with_root else (Host(), str(place))
    with as_nobody(), pytest.raises(PermissionError, match="widgets"):
        host.glob(f"{above}/widgets/{pattern}")
    with as_nobody(), pytest.raises(PermissionError, match="widgets"):
        host.directories(f"{above}/widgets/{pattern}")
    assert host.glob(f"{above}/nothing/*") == []


async def test_a_discovery_in_it_fails_instead_of_finding_nothing(place: Path) -> None:
    class Widgets(kdp.DeviceBackend):
        resource = "example.com/widget"

        @override
        def discover(self) -> list[kdp.Device]:
            return [kdp.Device(id=each.name) for each in Host().directories(f"{place}/widgets/*")]

    with as_nobody(), pytest.raises(kdp.errors.HookFailedError, match="raised PermissionError"):
        await discover_once(Widgets(), host=Host())


def test_a_snapshot_leaves_out_what_may_not_be_read(place: Path) -> None:
    with as_nobody():
        assert siblings(Host(place), ["/sys/devices/pci0/x/y"]) == []
