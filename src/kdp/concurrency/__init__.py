"""What tasks and threads share: one value with a version, pauses that grow, work in daemon threads."""

from __future__ import annotations
