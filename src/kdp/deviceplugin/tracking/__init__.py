"""Which pod holds which device: asked of the kubelet, remembered in a file, given back to the backend."""

from __future__ import annotations
