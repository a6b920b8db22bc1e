"""The kubelet's device plugin protocol v1beta1: registers resources, streams device lists, and answers allocations.

It knows neither where devices come from nor DRA.
"""

from __future__ import annotations

from .manager import PluginManager, Status
from .options import ManagerOptions
from .plugin import DevicePlugin
from .status import ResourceStatus

__all__ = ["DevicePlugin", "ManagerOptions", "PluginManager", "ResourceStatus", "Status"]
