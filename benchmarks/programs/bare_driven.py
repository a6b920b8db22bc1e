"""The bare plugin whose devices flip on command, as `driven`'s do."""

from __future__ import annotations

import asyncio
import sys

from .bare import Plugin
from .names import ids
from .orders import obey


async def _run() -> None:
    names = ids(int(sys.argv[2]))
    plugin = Plugin(sys.argv[1], names)
    orders = asyncio.create_task(obey(names, plugin.change))
    await plugin.run()
    orders.cancel()


def main() -> None:
    """Serve so many devices in this plugin directory."""
    asyncio.run(_run())
