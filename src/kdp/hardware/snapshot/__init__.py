"""Some of a node's files as a small archive: taken, written, read, and stripped of what tells machines apart."""

from __future__ import annotations
