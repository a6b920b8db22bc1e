"""The figures and the news of a process, for an administrator and the cluster: metrics, status document, news, labels.

It reads the counts of the rooms below, and changes nothing there.
"""

from __future__ import annotations
