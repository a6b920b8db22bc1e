from __future__ import annotations

from pathlib import Path

from kdp.kubelet import KubeletPaths


def test_the_plugin_directory_alone_does_not_move_with_the_root_directory() -> None:
    paths = KubeletPaths.under("/k")
    assert paths.kubelet_socket == Path("/var/lib/kubelet/device-plugins/kubelet.sock")
    assert (paths.plugins_registry_dir, paths.plugins_dir) == (Path("/k/plugins_registry"), Path("/k/plugins"))
    assert paths.pod_resources_socket == Path("/k/pod-resources/kubelet.sock")
    assert paths.pods_api_socket == Path("/k/pods-api/pods-api.sock")


def test_a_simulated_kubelet_has_all_directories_below_its_root() -> None:
    paths = KubeletPaths.simulated("/k")
    assert paths.kubelet_socket == Path("/k/device-plugins/kubelet.sock")
    assert paths.pods_api_socket == Path("/k/pods-api/pods-api.sock")


def test_a_directory_that_is_given_wins_over_the_root() -> None:
    paths = KubeletPaths.under("/k", device_plugin_dir="/d", plugins_registry_dir="/r")
    assert paths.kubelet_socket == Path("/d/kubelet.sock")
    assert paths.plugins_registry_dir == Path("/r")
    assert paths.pod_resources_dir == Path("/k/pod-resources")
