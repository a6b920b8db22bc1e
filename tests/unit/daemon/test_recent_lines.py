"""The last lines of the log: how many, and that nothing blocks, recurses, or raises while they are kept."""

from __future__ import annotations

import gc
import logging
from contextlib import closing
from pathlib import Path

from anyio import to_thread
from tests.waiting import until

from kdp.command.asking import ask
from kdp.daemon import logs
from kdp.daemon.logs import MOST_RECENT_BYTES, RecentLines, StderrHandler
from kdp.daemon.parsers import Address
from kdp.daemon.probes import Probes, log_page
from kdp.daemon.readiness import Readiness
from kdp.daemon.settings import Settings

from .test_logs import new_process
from .test_probes import asked


def test_bytes_are_bounded_too_and_a_long_line_is_cut() -> None:
    recent = RecentLines()
    for _ in range(100):
        recent.add(b"x" * 1000 + b"\n")
    assert MOST_RECENT_BYTES - 1001 < len(recent.text()) <= MOST_RECENT_BYTES
    recent.add(b"y" * (2 * MOST_RECENT_BYTES))
    assert recent.text() == "y" * (MOST_RECENT_BYTES - 1) + "\n"


def test_they_are_kept_only_for_a_process_with_a_socket_and_through_a_reload() -> None:
    with new_process() as root:
        logs.configure(Settings())
        assert logs.recent() is None
        logs.configure(Settings(), keeps_recent=True)
        logging.getLogger("vendor").warning("first\x1b")
        logs.configure(Settings(log_format="json"), keeps_recent=True)
        logging.getLogger("vendor").warning("second")
        found = logs.recent()
        assert found is not None
        first, second = found.text().splitlines()
        assert first.endswith("WARNING vendor: first\\x1b")
        assert '"msg": "second"' in second
        assert isinstance(root.handlers[0], StderrHandler)
        logs.configure(Settings())
        assert logs.recent() is None


def test_a_finalizer_that_logs_while_a_line_is_added_is_no_fault() -> None:
    class Dying:
        def __del__(self) -> None:
            logging.getLogger("vendor").warning("finalized")

    with new_process():
        logs.configure(Settings(), keeps_recent=True)
        for _ in range(50):
            cycle = [Dying()]
            cycle.append(cycle)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            del cycle
            logging.getLogger("vendor").warning("added")
        gc.collect()
        found = logs.recent()
        assert found is not None
        assert found.text().count("finalized") == 50


async def test_the_unix_socket_has_the_page_and_the_port_has_not(tmp_path: Path) -> None:
    recent = RecentLines()
    recent.add(b"a secret line\n")
    page = log_page(recent.text)
    path = tmp_path / "own.sock"
    with closing(Probes(Address("127.0.0.1", 0), lambda: Readiness(True, {}), path=path, pages={"/log": page})) as it:
        assert (await asked(it, "/log"))[0] == 403
        await until(path.exists)
        assert await to_thread.run_sync(ask, str(path), "/log") == (0, "a secret line\n")
