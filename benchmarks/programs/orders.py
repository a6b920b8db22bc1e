"""What the driven plugins, with kdp and without, do on command: flip devices, and tell when."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


async def obey(ids: Sequence[str], change: Callable[[str, bool], None]) -> None:
    """Obey the lines of stdin for ever.

    Args:
        ids: The devices; all of them are healthy now.
        change: Sets the health of one.
    """
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[bytes] = asyncio.Queue()
    loop.add_reader(0, lambda: orders.put_nowait(os.read(0, 4096)))
    healthy = dict.fromkeys(ids, True)
    _tell("ready")
    while order := await orders.get():
        line = json.loads(order)
        begun, times = time.monotonic(), []
        for number in range(line["flips"]):
            await asyncio.sleep(max(0.0, begun + number * line["period"] - time.monotonic()))
            device_id = ids[number % line["devices"]]
            healthy[device_id] = not healthy[device_id]
            times.append(time.monotonic())
            change(device_id, healthy[device_id])
        _tell("flipped", times=times, unhealthy=[device_id for device_id, well in healthy.items() if not well])
    loop.remove_reader(0)


def _tell(event: str, **fields: object) -> None:
    data = memoryview((json.dumps({"event": event, **fields}) + "\n").encode())
    while data:
        data = data[os.write(1, data) :]
