"""Which process has a directory mounted, by the kernel's lists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.mounted import NODE, show_mounts

from kdp.storage.mounts import has_mounted, how_to_write

STATE = Path("/var/lib/kdp")


def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: str, there: str, directory: Path = STATE) -> bool:
    show_mounts(monkeypatch, tmp_path / "proc", {"self": here, "7": f"9 8 0:50 / / rw - overlay overlay rw\n{there}"})
    return has_mounted(7, directory)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        pytest.param(NODE, "10 9 8:1 /var/lib/kdp /var/lib/kdp rw", id="a directory of the root"),
        pytest.param(NODE, "10 9 8:1 /var/lib/kdp /elsewhere rw", id="under another name"),
        pytest.param(f"{NODE}23 22 8:2 / /var rw", "10 9 8:2 /lib/kdp /var/lib/kdp rw", id="a partition of its own"),
        pytest.param(f"{NODE}23 22 0:9 / /var/lib/kdp rw", "10 9 0:9 / /var/lib/kdp rw", id="a mount of its own"),
        pytest.param(f"{NODE}23 22 8:2 / /var/lib rw\n24 22 8:3 / /var/lib rw", "10 9 8:3 /kdp /x rw", id="covered"),
        pytest.param("22 1 8:1 /@ / rw", "10 9 8:1 /@/var/lib/kdp /x rw", id="a subvolume"),
    ],
)
def test_a_plugin_has_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, there: str
) -> None:
    assert mounted(tmp_path, monkeypatch, here=here, there=there)


@pytest.mark.parametrize(
    "there",
    [
        pytest.param("10 9 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/x /var/lib/kdp rw", id="volume"),
        pytest.param("10 9 0:77 /var/lib/kdp /var/lib/kdp rw", id="another file system"),
        pytest.param("10 9 8:1 /var/lib/kdp/sub /var/lib/kdp rw", id="a directory below it"),
        pytest.param("10 9 8:1 /var/lib /var/lib rw", id="a directory above it"),
        pytest.param("", id="no mount"),
        pytest.param("10 9 8:1", id="half a line"),
    ],
)
def test_a_tenants_pod_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    assert not mounted(tmp_path, monkeypatch, here=NODE, there=there)


def test_a_name_with_a_space_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = r"10 9 8:1 /var/my\040state /x rw"
    assert mounted(tmp_path, monkeypatch, here=NODE, there=there, directory=Path("/var/my state"))


def test_a_process_that_has_gone_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_mounts(monkeypatch, tmp_path / "proc", {"self": NODE})
    assert not has_mounted(7, STATE)
    assert not has_mounted(0, STATE)


def test_the_kernels_own_list_is_understood() -> None:
    """This process has its root directory mounted, as it sees it."""
    assert has_mounted(os.getpid(), Path("/"))
    assert not has_mounted(os.getpid(), Path("/usr/lib/no-such-directory"))


@pytest.mark.parametrize(
    ("mount", "is_pod", "said"),
    [
        (
            "23 22 8:1 /x /var/lib/kdp ro - ext4 /dev/sda1 rw",
            True,
            "remove readOnly from the volumeMount of /var/lib/kdp",
        ),
        ("23 22 8:1 /x /var/lib/kdp ro - ext4 /dev/sda1 rw", False, "mount -o remount,bind,rw /var/lib/kdp"),
        ("23 22 8:1 /x /var/lib/kdp ro - ext4 /dev/sda1 ro,errors=remount-ro", True, "its file system itself is"),
        ("", True, "volumeMount of / in"),
    ],
)
def test_a_file_system_that_failed_was_called_a_mount_of_the_daemonset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, is_pod: bool, said: str
) -> None:
    show_mounts(monkeypatch, tmp_path / "proc", {"self": NODE + mount})
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "x" if is_pod else "")
    assert said in how_to_write(STATE)
