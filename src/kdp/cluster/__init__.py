"""The API server: what kdp asks of it, the client that asks, nodes, and Kubernetes Events.

It knows neither devices nor the kubelet.
"""

from __future__ import annotations
