"""Files that outlive the process: replaced whole, locked between processes, read without trust in what lies there.

`read_text` and `parse_json` are for backends, too, whose parameters name files.
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .documents import parse_json as parse_json
    from .reading import read_text as read_text
