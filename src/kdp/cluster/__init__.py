"""The API server: what kdp asks of it, the client that asks, and Kubernetes Events.

It knows neither devices nor the kubelet.
"""

from __future__ import annotations
