"""Where a kubelet keeps its sockets, all below one root unless told otherwise.

The device-plugin directory is fixed at ``/var/lib/kubelet/device-plugins`` in the kubelet's own code whatever its
``--root-dir`` says; the others follow the root directory (contract section 0.1). Hence one setting for the root
and one for each directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..startup import shown

if TYPE_CHECKING:
    import os

DEFAULT_ROOT = Path("/var/lib/kubelet")


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
        """Lay out the directories below ``root``; a directory that is given wins over the root."""
        base = Path(root)
        return cls(
            device_plugin_dir=Path(device_plugin_dir or base / "device-plugins"),
            plugins_registry_dir=Path(plugins_registry_dir or base / "plugins_registry"),
            plugins_dir=Path(plugins_dir or base / "plugins"),
            pod_resources_dir=Path(pod_resources_dir or base / "pod-resources"),
            pods_api_dir=Path(pods_api_dir or base / "pods-api"),
        )

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
