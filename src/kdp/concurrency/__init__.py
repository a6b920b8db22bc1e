"""What tasks and threads share: one observable value, backoff, and blocking work in daemon threads.

It does not know what the work is for.
"""

from __future__ import annotations
