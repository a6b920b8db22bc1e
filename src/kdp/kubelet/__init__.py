"""What a node's kubelet offers to plugins: its directories, and word of its restarts."""

from __future__ import annotations

from .paths import KubeletPaths
from .watch import KubeletState, KubeletView, KubeletWatch, look

__all__ = ["KubeletPaths", "KubeletState", "KubeletView", "KubeletWatch", "look"]
