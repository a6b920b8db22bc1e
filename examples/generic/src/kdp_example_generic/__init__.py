"""A device plugin without code: a YAML file says which device nodes of the host are which resource.

The data's way: ``document`` (YAML with line numbers) -> ``config`` (what the admin wants, checked) -> ``pattern`` and
``usb`` (what is there) -> ``match`` (which nodes belong together) -> ``devices`` (what kdp is told).
``backend`` joins them; kdp itself follows the file (`kdp.WatchedFile`).
"""

from __future__ import annotations

from .backend import Generic

__all__ = ["Generic"]
