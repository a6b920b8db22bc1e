"""The kubelet's device plugin protocol v1beta1: registers resources, streams device lists, and answers allocations.

It knows neither where devices come from nor DRA.
"""

from __future__ import annotations

from .manager import PluginManager, Status
from .plugin import DevicePlugin, ResourceStatus

__all__ = ["DevicePlugin", "PluginManager", "ResourceStatus", "Status"]
