"""What a vendor writes and reads: frozen values that check themselves. No I/O, no clock, no protobuf."""

from __future__ import annotations
