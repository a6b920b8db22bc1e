"""The kubelet's directory: missing, elsewhere, pinned, read-only, or in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.nobody import as_nobody

from kdp.admin.doctor import kubelet, sockets

from .samples import LEFT_OUT, listening, node_in, plugin_dir, resource, status, told, written


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


def test_a_question_failed_if_the_nodes_own_directory_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = tmp_path / "host/var/lib/kubelet"
    (closed / "device-plugins").mkdir(parents=True)
    closed.chmod(0)
    with as_nobody():
        verdict, text = told(kubelet.directory(node_in(tmp_path)))
    closed.chmod(0o755)
    assert (verdict, "does not exist, so no kubelet runs here" in text) == ("failed", True)


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
    assert "read-only file system | let its mount be written to: mount -o" in text


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


REGISTRY = {question.id: question for question in (*kubelet.QUESTIONS, *sockets.QUESTIONS)}
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
OF_DEVICE_PLUGINS = (
    "kubelet-directory",
    "kubelet-directory-pinned",
    "kubelet-directory-writable",
    "kubelet-socket",
    "kubelet-answers",
    "pod-resources",
)


@pytest.mark.parametrize("how", ["status", "setting", "mounts"])
def test_the_pod_of_a_healthy_dra_driver_failed_for_directories_of_device_plugins(tmp_path: Path, how: str) -> None:
    (tmp_path / "kubelet/plugins_registry").mkdir(parents=True)
    directories = {"cdi": "/cdi", "plugins_registry": str(tmp_path / "kubelet/plugins_registry")}
    driver = status(resource(state="published"), mode="dra", directories=directories)
    documents = (driver,) if how == "status" else ()
    node = node_in(tmp_path, *documents, environ=IN_POD, mode="dra" if how == "setting" else "")
    for name in OF_DEVICE_PLUGINS:
        assert told(REGISTRY[name].ask(node)) == LEFT_OUT
    assert told(REGISTRY["plugins-registry"].ask(node))[0] == "ok"


def test_a_device_plugin_that_registers_by_watcher_needs_no_plugin_directory(tmp_path: Path) -> None:
    registry = tmp_path / "kubelet/plugins_registry"
    registry.mkdir(parents=True)
    node = node_in(tmp_path, status(resource(), directories={"plugins_registry": str(registry)}), environ=IN_POD)
    assert told(REGISTRY["kubelet-socket"].ask(node)) == LEFT_OUT
    assert told(REGISTRY["pod-resources"].ask(node))[0] == "warning"
    assert told(REGISTRY["plugins-registry"].ask(node))[0] == "ok"


def test_a_device_plugin_still_needs_its_directory_beside_a_dra_driver(tmp_path: Path) -> None:
    node = node_in(tmp_path, status(resource()), status(resource(), mode="dra"))
    assert told(REGISTRY["kubelet-socket"].ask(node))[0] == "failed"
    assert told(REGISTRY["kubelet-directory"].ask(node_in(tmp_path)))[0] == "failed"


def test_the_directory_that_a_dra_driver_needs_was_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tmp_path / "kubelet/plugins_registry"
    driver = status(resource(), mode="dra", directories={"plugins_registry": str(registry)})
    verdict, text = told(kubelet.registry(node_in(tmp_path, driver)))
    assert (verdict, f"{registry} does not exist | start the kubelet" in text) == ("failed", True)
    verdict, text = told(kubelet.registry(node_in(tmp_path, driver, environ=IN_POD)))
    assert f"in this container | mount the node's directory: hostPath: {registry}" in text
    registry.mkdir(parents=True)
    monkeypatch.setattr(kubelet, "may_write", lambda path: False)
    assert told(kubelet.registry(node_in(tmp_path, driver)))[0] == "failed"
    registry.rmdir()
    registry.touch()
    assert "is no directory" in told(kubelet.registry(node_in(tmp_path, driver)))[1]
    assert told(kubelet.registry(node_in(tmp_path, status(resource())))) == LEFT_OUT


def test_a_kubelet_that_no_container_can_see_was_not_known(tmp_path: Path) -> None:
    assert told(kubelet.root(node_in(tmp_path, environ=IN_POD))) == LEFT_OUT
    assert told(kubelet.root(node_in(tmp_path)))[0] == "not known"
    verdict, text = told(kubelet.root(node_in(tmp_path, status(resource()))))
    assert (verdict, "one has registered the plugin" in text) == ("ok", True)
