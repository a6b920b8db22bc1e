"""Where a kubelet keeps its sockets.

The kubelet's ``--root-dir`` moves all directories but one. The device-plugin directory is a constant in the kubelet's
code, ``/var/lib/kubelet/device-plugins`` (kubernetes/kubernetes#120626; contract section 0.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..startup import shown

if TYPE_CHECKING:
    import os

DEFAULT_ROOT = Path("/var/lib/kubelet")
DEVICE_PLUGIN_DIR = DEFAULT_ROOT / "device-plugins"


@attrs.frozen(kw_only=True)
class KubeletPaths:
    """The directories of one kubelet, as this process sees them.

    Attributes:
        device_plugin_dir: Holds ``kubelet.sock`` and the plugins' sockets.
        plugins_registry_dir: The plugin watcher's directory (contract section 3).
        plugins_dir: Holds a directory for each DRA driver, which is the driver's own.
        pod_resources_dir: Holds the pod-resources API's ``kubelet.sock``.
        pods_api_dir: Holds the pods API's ``pods-api.sock`` (1.36 and later).
    """

    __repr__ = shown

    device_plugin_dir: Path
    plugins_registry_dir: Path
    plugins_dir: Path
    pod_resources_dir: Path
    pods_api_dir: Path

    @classmethod
    def under(
        cls,
        root: str | os.PathLike[str] = DEFAULT_ROOT,
        *,
        device_plugin_dir: str | os.PathLike[str] | None = None,
        plugins_registry_dir: str | os.PathLike[str] | None = None,
        plugins_dir: str | os.PathLike[str] | None = None,
        pod_resources_dir: str | os.PathLike[str] | None = None,
        pods_api_dir: str | os.PathLike[str] | None = None,
    ) -> KubeletPaths:
        """Return the directories of a kubelet whose ``--root-dir`` is ``root``.

        Only ``device_plugin_dir`` stays where it is. A directory that is given wins. Use `simulated` for the kubelet of
        a test.
        """
        base = Path(root)
        return cls(
            device_plugin_dir=Path(device_plugin_dir or DEVICE_PLUGIN_DIR),
            plugins_registry_dir=Path(plugins_registry_dir or base / "plugins_registry"),
            plugins_dir=Path(plugins_dir or base / "plugins"),
            pod_resources_dir=Path(pod_resources_dir or base / "pod-resources"),
            pods_api_dir=Path(pods_api_dir or base / "pods-api"),
        )

    @classmethod
    def simulated(cls, root: str | os.PathLike[str]) -> KubeletPaths:
        """Return directories that are all below ``root``, as a simulated kubelet has them."""
        return cls.under(root, device_plugin_dir=Path(root) / DEVICE_PLUGIN_DIR.name)

    @property
    def kubelet_socket(self) -> Path:
        """Where the kubelet takes registrations."""
        return self.device_plugin_dir / "kubelet.sock"

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet says which pod holds which device."""
        return self.pod_resources_dir / "kubelet.sock"

    @property
    def pods_api_socket(self) -> Path:
        """Where a kubelet from 1.36 on says which pods it knows."""
        return self.pods_api_dir / "pods-api.sock"
