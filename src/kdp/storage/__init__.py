"""Files that outlive the process: replaced whole, locked between processes, read without trust in what lies there.

`read_text` and `parse_json` are for backends, too, whose parameters name files.
"""

from __future__ import annotations

from ..startup import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
