"""The API server of the cluster: what is asked of it, the client that asks, and Events."""

from __future__ import annotations
