"""What the process tells an administrator and the cluster, as metrics and Events; and what commands do to nodes.

It reads what the rooms below count, and they do not know it.
"""

from __future__ import annotations
