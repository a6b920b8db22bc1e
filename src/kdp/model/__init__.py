"""What a vendor writes and reads: backends, devices, edits, claims, and names, checked on construction.

It knows no I/O, no clock, and no protobuf.
"""

from __future__ import annotations
