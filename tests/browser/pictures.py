"""Draws the pictures of the documentation: the page at two widths, and in dark mode.

usage: python -m tests.browser.pictures [FOLDER [FORMAT]]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from kdp.testing import AdmissionError, Pod

from .chromium import Browser
from .scene import GPUS, RESOURCE, Scene, document, scene

PICTURES = (("wide", 1280, 2000, False), ("narrow", 360, 1100, False), ("dark", 1280, 2000, True))
"""Name, width and most height in pixels, and whether the reader prefers a dark page."""

FOLDER = Path(__file__).resolve().parents[2] / "docs/how-to"


async def happen(at: Scene) -> None:
    """Let happen what the pictures show."""
    kubelet = at.kubelet
    await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 8})
    for name, number in (("train-0", 4), ("notebook-anna", 1)):
        await kubelet.admit(Pod.asking({RESOURCE: number}, name=name))
    with anyio.fail_after(60):
        while "notebook-anna" not in await document(at):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.2)
    (at.folder / "ill-6").write_text("XID 79: the GPU has fallen off the bus")
    await kubelet.until(allocatable={RESOURCE: 7})
    (at.folder / "refuse").write_text("the driver is being updated; try again in a minute")
    try:
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="late"))
    except AdmissionError:
        (at.folder / "refuse").unlink()
    await kubelet.stop()
    await kubelet.start()
    await kubelet.until(streaming=RESOURCE)
    await kubelet.readmit()


async def main(folder: Path, suffix: str) -> None:
    """Draw all of them."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nobody waits
    with TemporaryDirectory() as work:
        async with scene(Path(work), GPUS, KDP_METRICS="on") as at, Browser() as browser:
            await happen(at)
            tab = await browser.open(at.url, width=1280)
            await tab.until(
                "document.body.innerText.includes('notebook-anna') && document.body.innerText.includes('643')"
            )
            for name, width, tallest, dark in PICTURES:
                tab = await browser.open(at.url, width=width, dark=dark)
                await tab.until("document.querySelector('#page main') !== null")
                await tab.picture(folder / f"status-page-{name}.{suffix}", tallest=tallest)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER, sys.argv[2] if len(sys.argv) > 2 else "webp")
