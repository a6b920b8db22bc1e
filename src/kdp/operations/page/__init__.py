"""The status page: what the process serves, as one HTML page that refreshes itself.

It shows the status document, and knows neither devices nor the plugin that serves them.
"""

from __future__ import annotations

from .shell import StatusPage

__all__ = ["StatusPage"]
