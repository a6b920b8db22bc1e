from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from kdp_example_hwrng import Fault, examine, sample


def noise(size: int, seed: int = 1) -> bytes:
    """Return what looks random, and is the same in each run."""
    return hashlib.shake_256(bytes([seed % 256, seed // 256])).digest(size)


def test_random_bytes_pass() -> None:
    for seed in range(1000):
        examine(noise(256, seed))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff" * 256, "it gives nothing but 0xff"),
        (noise(128) * 2, "it repeats itself"),
        (bytes(30) + noise(226), "of 256 bytes are 0x00"),
        (bytes([0, 1] * 112) + noise(32), "it repeats itself"),
    ],
)
def test_what_cannot_be_random_is_named(data: bytes, sentence: str) -> None:
    with pytest.raises(Fault, match=sentence):
        examine(data)


def test_a_generator_that_says_nothing_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rng")
    writer = os.open(tmp_path / "rng", os.O_RDWR)
    os.write(writer, b"x" * 7)
    began = time.monotonic()

    with pytest.raises(Fault, match=r"it gave 7 of 256 bytes in 0\.\d s"):
        sample(tmp_path / "rng", deadline=began + 0.1)

    assert time.monotonic() - began < 5
    os.close(writer)
