"""Does a random number generator work? Reads some bytes before a deadline, and looks whether they can be random.

It finds what breaks in practice: a generator that says nothing, says always the same, or repeats itself. It is no proof
of quality. A good generator is refused less than once in 10**12 tests.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Final

BLOCK: Final = 32
"""Bytes; two equal blocks are no chance: one in 2**256."""

SIZE: Final = 8 * BLOCK

_MOST_OF_ONE: Final = 16
"""Of `SIZE` random bytes so many are equal less than once in 10**12."""


class Fault(Exception):
    """The generator does not work; the text says how."""


def sample(path: str | os.PathLike[str], *, deadline: float) -> bytes:
    """Read `SIZE` bytes.

    Args:
        path: The generator's node, as this process sees it.
        deadline: When to give up, on `time.monotonic`'s clock, in seconds.

    Raises:
        Fault: It gave less before the deadline.
        OSError: It cannot be opened or read.
    """
    began = time.monotonic()
    # Not blocking: a generator that says nothing must not keep the thread.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < SIZE:
            try:
                got = os.read(descriptor, SIZE - len(data))
            except BlockingIOError:
                got = None
            if got:
                data += got
                continue
            if got == b"" or time.monotonic() >= deadline:
                waited = time.monotonic() - began
                raise Fault(f"it gave {len(data)} of {SIZE} bytes in {waited:.1f} s")
            time.sleep(0.01)
        return data
    finally:
        os.close(descriptor)


def examine(data: bytes) -> None:
    """Look whether bytes can be random.

    Raises:
        Fault: They cannot.
    """
    (value, most), *_ = Counter(data).most_common(1)
    if most == len(data):
        raise Fault(f"it gives nothing but 0x{value:02x}")
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    if len(set(blocks)) < len(blocks):
        raise Fault("it repeats itself")
    if most > _MOST_OF_ONE:
        raise Fault(f"{most} of {len(data)} bytes are 0x{value:02x}")
