"""The kubelet's directory: missing, elsewhere, pinned, read-only, or in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdp.doctor import kubelet

from .samples import listening, node_in, plugin_dir, told, written


def process(root: Path, pid: int, *words: str) -> None:
    written(root / "host/proc" / str(pid) / "cmdline", "\0".join((*words, "")))


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    verdict, text = told(kubelet.directory(node_in(tmp_path)))
    assert verdict == "failed"
    assert "device-plugins does not exist, so no kubelet runs here" in text
    verdict, text = told(kubelet.directory(node_in(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})))
    assert "in this container | mount the node's" in text


def test_a_directory_that_is_elsewhere(tmp_path: Path) -> None:
    place = "/var/snap/microk8s/current/kubelet/device-plugins"
    with listening(tmp_path / f"host{place}/kubelet.sock"):
        verdict, text = told(kubelet.directory(node_in(tmp_path)))
    assert verdict == "failed"
    assert f"a kubelet.sock is in {tmp_path}/host{place} | mount that directory" in text


def test_a_directory_that_was_removed_under_its_mount(tmp_path: Path) -> None:
    directory = tmp_path / "kubelet/device-plugins"
    directory.mkdir(parents=True)
    held = os.open(directory, os.O_RDONLY)
    directory.rmdir()
    try:  # a descriptor pins it as a mount does
        os.symlink(f"/proc/self/fd/{held}", directory)
        verdict, text = told(kubelet.pinned(node_in(tmp_path)))
    finally:
        os.close(held)
    assert verdict == "failed"
    assert "this container still has the old one | make a new container" in text


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_in(tmp_path)
    plugin_dir(node)
    monkeypatch.setattr(kubelet, "may_write", lambda path: False)
    assert "may not write to" in told(kubelet.writable(node))[1]
    monkeypatch.setattr(kubelet, "is_read_only", lambda path: True)
    verdict, text = told(kubelet.writable(node))
    assert verdict == "failed"
    assert "read-only file system | remove readOnly" in text


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["/usr/bin/kubelet", "--root-dir=ROOT"], "ok"),
        (["/usr/local/bin/k3s", "server", "--kubelet-arg=root-dir=/other"], "warning"),
        (["bash", "--root-dir=/other"], "not known"),
    ],
)
def test_the_root_directory_of_the_running_kubelet(tmp_path: Path, words: list[str], verdict: str) -> None:
    node = node_in(tmp_path)
    inside = tmp_path / "host/var/lib/kubelet"
    inside.mkdir(parents=True)
    (tmp_path / "kubelet").symlink_to(inside)
    process(tmp_path, 40, *(word.replace("ROOT", "/var/lib/kubelet") for word in words))
    found, text = told(kubelet.root(node))
    assert found == verdict
    assert verdict != "warning" or "--kubelet-root /other" in text
