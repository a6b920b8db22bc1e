"""One backend's life: calls its hooks, opens, discovers, watches, and closes, and judges its devices' health.

It knows no protocol.
"""

from __future__ import annotations
