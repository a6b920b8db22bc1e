from __future__ import annotations

from pathlib import Path

from kdp.kubelet import KubeletPaths


def test_everything_is_below_one_root() -> None:
    paths = KubeletPaths.under("/k")
    assert paths.kubelet_socket == Path("/k/device-plugins/kubelet.sock")
    assert paths.plugins_registry_dir == Path("/k/plugins_registry")
    assert paths.pod_resources_socket == Path("/k/pod-resources/kubelet.sock")
    assert paths.pods_api_socket == Path("/k/pods-api/pods-api.sock")
    assert KubeletPaths.under().device_plugin_dir == Path("/var/lib/kubelet/device-plugins")


def test_a_directory_that_is_given_wins_over_the_root() -> None:
    paths = KubeletPaths.under("/k", device_plugin_dir="/d", plugins_registry_dir="/r")
    assert paths.kubelet_socket == Path("/d/kubelet.sock")
    assert paths.plugins_registry_dir == Path("/r")
    assert paths.pod_resources_dir == Path("/k/pod-resources")
