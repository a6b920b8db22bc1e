"""The commands that come with the test kit: simulate, conformance, record and replay."""

from __future__ import annotations
