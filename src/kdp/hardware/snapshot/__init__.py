"""A part of a node's files as an archive: captured, redacted, written, and read.

It does not know what the files mean.
"""

from __future__ import annotations
