"""HTTP/2 frames as bytes: just enough to tell them apart, to change some and to make others. No I/O.

A frame is nine bytes of head (length, type, flags, stream) and a payload (RFC 9113 section 4.1). Headers stay as they
are, compressed; nothing here needs to know what a call says.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says before its first frame."""

DATA, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x3, 0x4, 0x6, 0x7, 0x8

ACK: Final = 0x1
"""The flag of SETTINGS and PING that makes them an answer."""

INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 0x4, 0x5

_HEAD: Final = 9


@attrs.frozen
class Frame:
    """One frame.

    Attributes:
        type: For example `DATA`.
        flags: As they came.
        stream: The stream's number; 0 for the whole connection.
        payload: The rest.
    """

    type: int
    flags: int
    stream: int
    payload: bytes

    @property
    def is_ack(self) -> bool:
        """Whether it answers a SETTINGS or a PING."""
        return self.type in (SETTINGS, PING) and bool(self.flags & ACK)

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        length = len(self.payload)
        return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, self.type, self.flags, self.stream) + self.payload


class FrameReader:
    """Cuts a stream of bytes into frames.

    Args:
        preface: Whether `PREFACE` comes first, as from a client.
    """

    def __init__(self, *, preface: bool) -> None:
        self._rest = b""
        self._preface = len(PREFACE) if preface else 0

    def feed(self, data: bytes) -> tuple[bytes, list[Frame]]:
        """Take bytes; return what of the preface is in them, and the frames that are whole now."""
        self._rest += data
        preface, self._rest = self._rest[: self._preface], self._rest[self._preface :]
        self._preface -= len(preface)
        frames: list[Frame] = []
        while not self._preface and len(self._rest) >= _HEAD:
            high, low, kind, flags, stream = struct.unpack(">BHBBI", self._rest[:_HEAD])
            end = _HEAD + (high << 16) + low
            if len(self._rest) < end:
                break
            frames.append(Frame(kind, flags, stream & 0x7FFF_FFFF, self._rest[_HEAD:end]))
            self._rest = self._rest[end:]
        return preface, frames


def settings(values: dict[int, int]) -> Frame:
    """Return a SETTINGS frame."""
    return Frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in values.items()))


def read_settings(frame: Frame) -> dict[int, int]:
    """Return what a SETTINGS frame says."""
    pairs: list[tuple[int, int]] = list(struct.iter_unpack(">HI", frame.payload))
    return dict(pairs)


def window_update(stream: int, size: int) -> Frame:
    """Return a WINDOW_UPDATE frame: the peer may send so many bytes more."""
    return Frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def ping(payload: bytes) -> Frame:
    """Return a PING frame with these eight bytes."""
    return Frame(PING, 0, 0, payload)


def goaway(text: str, *, code: int = 0) -> Frame:
    """Return a GOAWAY frame: no stream of the peer was or will be processed; code 0: NO_ERROR."""
    return Frame(GOAWAY, 0, 0, struct.pack(">II", 0, code) + text.encode())
