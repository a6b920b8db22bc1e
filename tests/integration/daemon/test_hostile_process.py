"""A plugin's process under conditions that others set: SIGTERM still ends it, or it says what is wrong.

Each condition is a real one: a parent that blocks signals or hands files on, a limit.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdp.daemon.limits import FREE_FILES, LEAST_FILES, LEAST_MIB, least_threads
from kdp.testing import Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .conftest import Plugin
from .test_process import RESOURCE, Figure, Start, program

pytestmark = pytest.mark.slow


async def ends_in_time(plugin: Plugin, figure: Figure, what: str) -> None:
    code, took = await plugin.stop()
    figure(f"stop after {what}", took * 1000, "ms")
    assert code == 0, plugin.log
    assert took < PATIENCE, plugin.log


BLOCKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

MANY_FILES = """
import os, resource, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("parent", "arguments"), [(BLOCKED, ()), (MANY_FILES, ("W",))], ids=["signals blocked", "1,100 files open"]
)
async def test_what_the_parent_hands_on_does_not_keep_it_from_stopping(
    start: Start, kubelet: SimulatedKubelet, parent: str, arguments: tuple[str, ...], figure: Figure
) -> None:
    async with start(program(), *arguments, under=[sys.executable, "-c", parent]) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        await ends_in_time(plugin, figure, "what the parent handed on")


# Limits ---------------------------------------------------------------------------------------------------------------


def limited(words: str) -> list[str]:
    return ["sh", "-c", f'{words}; exec {sys.executable} "$@"', "sh"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("ulimit -v 300000", f"only 292 MiB of address space .* {LEAST_MIB} MiB or more"),
        (f"ulimit -n {LEAST_FILES - 1}", f"only {LEAST_FILES - 1} file descriptors .* {LEAST_FILES} or more"),
    ],
)
async def test_a_limit_that_is_too_low_is_one_sentence_and_exit_code_2(start: Start, words: str, text: str) -> None:
    async with start(program(), under=limited(words)) as plugin:
        assert await plugin.ends() == 2, plugin.log
        assert re.search(text, plugin.log), plugin.log
        assert len(plugin.lines) == 1


async def test_too_many_open_files_are_one_sentence_and_exit_code_2(start: Start) -> None:
    more = "import os, sys\nfor _ in range(30): os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)\n"
    parent = [sys.executable, "-c", f"{more}os.execv('/bin/sh', ['sh', *sys.argv[1:]])"]
    async with start(program(), under=[*parent, *limited("ulimit -n 50")[1:]]) as plugin:
        assert await plugin.ends() == 2, plugin.log
        found = re.search(r"(\d+) of 50 file descriptors .* give this process (\d+) or more", plugin.log)
        assert found is not None, plugin.log
        assert int(found[2]) == int(found[1]) + FREE_FILES


@pytest.mark.parametrize("words", [f"ulimit -v {LEAST_MIB << 10}", f"ulimit -n {LEAST_FILES}"])
async def test_with_the_least_that_the_sentence_names_it_serves(
    start: Start, kubelet: SimulatedKubelet, words: str, figure: Figure
) -> None:
    async with start(program(), "W", under=limited(words)) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await ends_in_time(plugin, figure, f"`{words}`")


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of this test's own for its limit of processes, of version 1 or 2."""
    root = next(
        (Path(p) for p in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup") if os.access(f"{p}/cgroup.procs", os.W_OK)), None
    )
    if root is None:
        pytest.skip("no cgroup can be made here: that needs root and a writable /sys/fs/cgroup")
    group = root / f"kdp-test-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        if not (group / "pids.max").exists():
            pytest.skip("the cgroup has no pids controller here")
        yield group
    finally:
        group.rmdir()


async def test_too_few_threads_are_one_sentence_and_exit_code_2(start: Start, group: Path) -> None:
    most = 6
    (group / "pids.max").write_text(str(most))
    async with start(program(), under=limited(f"echo $$ > {group}/cgroup.procs")) as plugin:
        assert await plugin.ends() == 2, plugin.log
        assert f"only {most} threads can be started (pids.max {most}), too few for gRPC" in plugin.log
        assert f"give this process {least_threads()} or more" in plugin.log
        assert len(plugin.lines) == 1


async def test_with_the_least_threads_that_the_sentence_names_it_serves(
    start: Start, kubelet: SimulatedKubelet, group: Path, figure: Figure
) -> None:
    (group / "pids.max").write_text(str(least_threads()))
    async with start(program(), "W", under=limited(f"echo $$ > {group}/cgroup.procs")) as plugin:
        await kubelet.until(allocatable={RESOURCE: 2})
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
        await ends_in_time(plugin, figure, "the least threads")
