"""Drivers of what a node really runs: the kubelet's device manager alone, the whole kubelet, and a cluster."""

from __future__ import annotations

from .cluster import Cluster
from .devmgr import DeviceManager, DeviceManagerEnded, NotReached
from .dra import DraManager
from .kubelet import Kubelet
from .tools import MINORS, Minor, Missing

__all__ = [
    "MINORS",
    "Cluster",
    "DeviceManager",
    "DeviceManagerEnded",
    "DraManager",
    "Kubelet",
    "Minor",
    "Missing",
    "NotReached",
]
