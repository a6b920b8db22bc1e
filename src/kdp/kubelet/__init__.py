"""What a node's kubelet offers: its directories, its sockets, and its pod-resources and pods APIs.

It knows neither resources nor backends.
"""

from __future__ import annotations

from .paths import KubeletPaths
from .watch import KubeletState, KubeletView, KubeletWatch, look

__all__ = ["KubeletPaths", "KubeletState", "KubeletView", "KubeletWatch", "look"]
