"""The claims of one node: what each asks for, how it is prepared and undone, and what is remembered of it.

It knows no gRPC, and publishes no slices.
"""

from __future__ import annotations
