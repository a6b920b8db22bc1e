"""The figures and the news of a process, for an administrator and the cluster: metrics, Events, labels, eviction.

It reads what the rooms below count, and they do not know it.
"""

from __future__ import annotations
