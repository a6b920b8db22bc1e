"""The API server: its client, nodes, Kubernetes Events, evictions, and the start-up taint.

It gets the failed devices and their holders as values, and never asks the kubelet.
"""

from __future__ import annotations
