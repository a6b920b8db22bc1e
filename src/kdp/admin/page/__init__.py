"""The status page: the state of one or several plugins as HTML, as a file or served on this machine.

It shows status documents, and asks no plugin.
"""

from __future__ import annotations
