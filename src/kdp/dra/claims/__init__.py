"""One node's claims: what each asks for, how it is prepared and undone, what is remembered of it."""

from __future__ import annotations
