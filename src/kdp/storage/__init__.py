"""Files that outlive the process: replaced whole, locked between processes, cleaned of unfinished drafts."""

from __future__ import annotations
