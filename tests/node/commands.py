"""The command ``kdp`` as a process beside a real kubelet."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def kdp_command(
    log: Path, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """Run ``kdp`` with these arguments. At the end it still runs, and SIGTERM ends it with exit code 0.

    Args:
        log: What it writes goes there.
        arguments: Those after ``kdp``.
        env: All of its environment; None: ours.
    """
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kdp", *map(str, arguments)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=env,
        )
    try:
        yield process
        assert process.returncode is None
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
