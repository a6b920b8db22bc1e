"""The generic example in a cluster: its manifests, and device nodes for it to find."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

import yaml

from .backend import RESOURCE
from .nodekit import Cluster
from .nodekit.image import STAY
from .nodekit.machine import IMAGE as BUSYBOX

__all__ = ["DEVICES", "IMAGE", "OPENS", "Nodes", "daemon_set", "device_class", "pod"]

IMAGE: Final = "docker.io/kdp/generic:1"
DEVICES: Final = "/run/widgets"
"""Where the cluster's node has its device nodes, and where the plugin finds them."""

OPENS: Final = f"for d in /dev/w*; do : <> $d && echo opened $d; done; env; {STAY}"
"""A pod's script: open what was given."""


class Nodes:
    """Device nodes like /dev/fuse, which no container may open unless it was given it.

    Args:
        folder: Where they are; it is made.
        names: Which there are at first.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            self.plug(name)

    def plug(self, name: str) -> None:
        """Have this node."""
        os.mknod(self._folder / name, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)

    def unplug(self, name: str) -> None:
        """Have it no longer."""
        (self._folder / name).unlink()

    def clear(self) -> None:
        """Have none."""
        for node in self._folder.iterdir():
            node.unlink()


def configuration(folder: str | Path) -> str:
    """Return the generic example's configuration for the nodes of a folder; their ids are their names."""
    group = {
        "id": "{name}",
        "env": {"WIDGETS": "{name}"},
        "paths": [{"path": f"{folder}/w*", "mountPath": "/dev/{name}", "shared": True}],  # all have one number
    }
    return yaml.safe_dump({"resources": [{"name": RESOURCE, "groups": [group]}]})


def daemon_set(*, max_surge: int = 1, release: int = 1) -> list[dict[str, Any]]:
    """Return the objects of the plugin ``plugin``.

    Args:
        max_surge: 1: the new pod starts before the old one ends; 0: after it.
        release: Another number is another version of the pod.
    """
    labels = {"app": "plugin"}
    mounts = {
        "device-plugins": ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"),
        "devices": (DEVICES, f"/host{DEVICES}"),
    }
    command = ["python3", "-m", "kdp", "run", "generic", "--set=config=/etc/kdp-generic/config.yaml"]
    container = {
        "name": "plugin",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [*command, "--host-root=/host", "--http=:8080"],
        "env": [{"name": "RELEASE", "value": str(release)}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/livez", "port": 8080}, "periodSeconds": 10},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/kdp-generic"},
            *({"name": name, "mountPath": inside} for name, (_, inside) in mounts.items()),
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "plugin"}},
            *({"name": name, "hostPath": {"path": outside}} for name, (outside, _) in mounts.items()),
        ],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "plugin"},
            "data": {"config.yaml": configuration(DEVICES)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "plugin"},
            "spec": {
                "selector": {"matchLabels": labels},
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": 1 - max_surge},
                },
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
    ]


def pod(name: str, count: int = 1, *, script: str = OPENS) -> dict[str, Any]:
    """Return a pod that asks for so many devices."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {RESOURCE: str(count)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "user"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }


async def until_serving(cluster: Cluster, process: str, *, is_dra: bool) -> None:
    """Wait until a process of the node serves the kubelet: the Node still counts the devices of the test before."""
    words = "registered with the kubelet" if is_dra else "connected to the kubelet"
    await cluster.until(lambda: words in cluster.log(process), f"{process} is {words}")


def device_class(name: str, driver: str) -> dict[str, Any]:
    """Return the class of all devices of a DRA driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }
