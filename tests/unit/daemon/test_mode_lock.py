from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.daemon import mode_lock
from kdp.daemon.mode_lock import Mode, ModeLock, key_of
from kdp.kubelet.paths import DEFAULT_ROOT
from kdp_testkit.patience import PATIENCE

KEY = "example.com/widget"

HOLDER = """
import asyncio, sys
from pathlib import Path
from kdp.daemon.mode_lock import ModeLock
async def main():
    async with ModeLock(Path(sys.argv[1]), sys.argv[2], ["example.com/widget"]):
        print("held", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


def hold(directory: Path, mode: Mode) -> subprocess.Popen[str]:
    """Start a process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory), mode], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_the_other_mode_is_waited_for_until_its_process_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_lock, "LOOK_PAUSE", 0.02)
    process = hold(tmp_path, "device-plugin")
    try:
        ours = ModeLock(tmp_path, "dra", [KEY, "example.com/other"])
        with anyio.move_on_after(0.2) as scope:
            await ours.__aenter__()
        assert scope.cancelled_caught
        assert ours.problem is not None
        assert f"another process serves {KEY} as a " in ours.problem
        assert len(caplog.messages) == 1
        process.kill()  # nothing is left of its lock
        with anyio.fail_after(PATIENCE):
            async with ours:
                assert ours.problem is None
    finally:
        process.kill()
        process.communicate()


async def test_other_backends_are_nobodys_business(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with ModeLock(tmp_path, "dra", [KEY]), ModeLock(tmp_path, "device-plugin", ["example.com/gadget"]):
            pass


async def test_where_nothing_can_be_written_nobody_is_kept_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_text("")
    async with ModeLock(tmp_path / "file" / "below", "dra", [KEY]):
        assert "no locks there (Not a directory): a second process could serve the same devices" in caplog.text


class Named(kdp.DeviceBackend):
    resource: str | None = KEY

    @override
    def discover(self) -> list[kdp.Device]:
        return []


class Unnamed(Named):
    resource = None


def test_a_backend_is_known_by_its_resource_or_its_class() -> None:
    assert key_of(Named(), DEFAULT_ROOT) == KEY
    assert key_of(Unnamed(), DEFAULT_ROOT) == f"{__name__}.Unnamed"


def test_a_kubelet_elsewhere_has_an_account_of_its_own(tmp_path: Path) -> None:
    keys = {key_of(Named(), root) for root in (DEFAULT_ROOT, tmp_path / "a", tmp_path / "b")}
    assert len(keys) == 3


async def test_the_last_one_leaves_nothing(tmp_path: Path) -> None:
    async with ModeLock(tmp_path, "dra", [KEY]):
        async with ModeLock(tmp_path, "dra", [KEY]):
            assert os.listdir(tmp_path) == ["example.com_widget.dra.lock"]
        assert os.listdir(tmp_path) == ["example.com_widget.dra.lock"]
    assert os.listdir(tmp_path) == []
