"""Drivers of what a node really runs: the kubelet's device manager alone, and the whole kubelet."""

from __future__ import annotations

from .devmgr import DeviceManager, DeviceManagerEnded, NotReached
from .tools import MINORS, Minor, Missing

__all__ = ["MINORS", "DeviceManager", "DeviceManagerEnded", "Minor", "Missing", "NotReached"]
