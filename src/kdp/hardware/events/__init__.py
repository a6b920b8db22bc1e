"""Changes that the kernel reports: devices, network interfaces, and names in directories.

It knows neither backends nor discovery.
"""

from __future__ import annotations
