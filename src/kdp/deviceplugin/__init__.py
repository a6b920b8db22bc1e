"""The kubelet's device-plugin protocol, v1beta1: from devices to a registered plugin that survives its kubelet."""

from __future__ import annotations

from .manager import PluginManager, Status
from .plugin import DevicePlugin, ResourceStatus

__all__ = ["DevicePlugin", "PluginManager", "ResourceStatus", "Status"]
