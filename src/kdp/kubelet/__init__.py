"""What a node's kubelet offers: its directories, its sockets, and its pod-resources and pods APIs.

It knows neither resources nor backends.
"""

from __future__ import annotations

from ..startup import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
