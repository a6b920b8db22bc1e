"""The ListAndWatchResponse of all devices: one buffer, in which a change moves what stands behind it. Sans-IO.

A list is handed out without a copy. The buffer is a `BytesIO`, which copies itself before a change for as long as
somebody holds what it gave out: a list that is still being sent stays as it was.

Invariants, each with mutants in the tests that break it:

1. The message is the pieces of all devices that were put and not dropped, each once and the last one; one that was
   handed out never changes.
2. No block is empty.
"""

from __future__ import annotations

from io import BytesIO
from typing import final

_BLOCK = 64
"""Devices that are encoded side by side: a flip joins their pieces, and adds up the sizes of the blocks before them."""

_MANY = 8
"""Blocks to be changed at once from which on the whole list is joined anew: each change moves half of it."""


@final
class ListBuffer:
    """The list message, cached per device: pieces in blocks, changed blocks written into the buffer on demand.

    Places that devices leave are taken by the next ones, and an empty block goes: however many ids come and go, there
    are never more blocks than the table needed at its largest, and none for an empty one.
    """

    def __init__(self) -> None:
        self._blocks: list[dict[str, bytes]] = []
        self._stale: set[int] = set()
        self._place: dict[str, int] = {}
        self._roomy: set[int] = set()
        self._buffer = BytesIO()
        self._sizes: list[int] | None = None  # of the blocks in the buffer; None: blocks came or went since

    def get(self, device_id: str) -> bytes | None:
        """Return the bytes that were put for a device."""
        place = self._place.get(device_id)
        return None if place is None else self._blocks[place][device_id]

    def put(self, device_id: str, piece: bytes) -> None:
        """List a device with these bytes, in the place of those it had."""
        place = self._place.get(device_id)
        if place is None:
            place = self._place[device_id] = self._room()
        self._blocks[place][device_id] = piece
        self._stale.add(place)
        if len(self._blocks[place]) >= _BLOCK:
            self._roomy.discard(place)

    def _room(self) -> int:
        """Return a block that can take one more device."""
        if not self._roomy:
            self._roomy.add(len(self._blocks))
            self._blocks.append({})
            self._sizes = None
        return next(iter(self._roomy))

    def drop(self, device_id: str) -> None:
        """List a device no longer."""
        place = self._place.pop(device_id)
        del self._blocks[place][device_id]
        self._stale.add(place)
        self._roomy.add(place)
        if not self._blocks[place]:
            self._remove(place)

    def _remove(self, place: int) -> None:
        """Take an empty block out; the last one moves to its place."""
        self._sizes = None
        last = len(self._blocks) - 1
        block = self._blocks.pop()
        if place != last:
            self._blocks[place] = block
            self._place.update(dict.fromkeys(block, place))
        for places in (self._stale, self._roomy):
            places.discard(place)
            if last in places:
                places.discard(last)
                places.add(place)

    def message(self) -> bytes:
        """Return the message; the same object until a device is put or dropped."""
        if self._sizes is None or len(self._stale) > _MANY:
            joined = [b"".join(block.values()) for block in self._blocks]
            self._sizes = [len(block) for block in joined]
            # Freed at once: glibc then takes what is smaller from its heap, where to grow by two bytes maps no pages.
            bytes(2 * sum(self._sizes))
            self._buffer = BytesIO(b"".join(joined))
        else:
            for place in self._stale:
                self._write(place, self._sizes)
        self._stale.clear()
        return self._buffer.getvalue()

    def _write(self, place: int, sizes: list[int]) -> None:
        """Write a block over what the buffer has of it, and move what stands behind it if it has another size now."""
        block = b"".join(self._blocks[place].values())
        begin, total, grown = sum(sizes[:place]), sum(sizes), len(block) - sizes[place]
        end = begin + sizes[place]
        if grown > 0:
            self._buffer.seek(total)
            self._buffer.write(bytes(grown))
        with self._buffer.getbuffer() as view:
            if grown:
                view[end + grown : total + grown] = view[end:total]
            view[begin : begin + len(block)] = block
        self._buffer.truncate(total + grown)
        sizes[place] = len(block)
