"""Which pod holds which device: asked of the kubelet, remembered in a file, and reported to the backend when released.

It knows neither the plugin's sockets nor its registration.
"""

from __future__ import annotations
