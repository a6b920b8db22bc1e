"""One backend's life, whatever protocol serves it: its hooks, open and close, discovery, health."""

from __future__ import annotations
