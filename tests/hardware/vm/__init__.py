"""Throw-away guests: Debian's kernel under QEMU, with kernel modules that the machine's own kernel has not.

* `Kind` says what hardware a guest has and which modules it loads; each kind is a small file of
  `tests.hardware.guests`.
* `boot` starts one, runs a command in it and returns the `Outcome`.

Nothing of a guest outlives the call: its files are in a temporary folder, and QEMU ends with the process that started
it.
"""

from __future__ import annotations

from .guest import Kind, Outcome, boot
from .tools import UNANSWERED, Missing

__all__ = ["UNANSWERED", "Kind", "Missing", "Outcome", "boot"]
