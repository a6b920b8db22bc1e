"""The state of a resource or driver in words, for the status page and for `kdp status`."""

from __future__ import annotations

from typing import Final

RESOURCES: Final = {
    "waiting": "Waiting",
    "serving": "Starting to serve",
    "registering": "Registering with the kubelet",
    "awaiting stream": "Registered, the kubelet has not asked for the devices yet",
    "connected": "Registered, the kubelet follows the devices",
    "lost": "The kubelet no longer follows the devices",
    "stopped": "Stopped",
    "no hardware": "This node has no such hardware",
    "registered": "Registered, the devices are not published yet",
    "published": "Published",
}
"""By the state of a resource or driver."""
