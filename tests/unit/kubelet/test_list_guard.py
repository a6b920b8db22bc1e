"""Lists and Allocates stay apart, also those of other processes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.forking import FORK, parent
from tests.waiting import until

from kdp.kubelet import list_guard
from kdp.kubelet.list_guard import ListGuard, ListPostponedError

HOLD = """
import asyncio, os, sys
from pathlib import Path
from kdp.kubelet.list_guard import ListGuard

async def main():
    ListGuard(Path(sys.argv[1])).hold(asyncio.current_task())
    print("held", flush=True)
"""
"""Start of a program in which an Allocate runs."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_guard, "PATIENCE", 0.1)


@asynccontextmanager
async def allocate(guard: ListGuard) -> AsyncIterator[None]:
    """Run an Allocate in a task of its own; it is answered at the end."""
    begun, ends = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        this = asyncio.current_task()
        assert this is not None
        guard.hold(this)
        begun.set()
        await ends.wait()

    task = asyncio.create_task(call())
    await begun.wait()
    try:
        yield
    finally:
        ends.set()
        await task


async def lists(guard: ListGuard) -> bool:
    """Whether a List may run now, or soon."""
    try:
        async with guard.listing():
            return True
    except ListPostponedError:
        return False


@pytest.fixture(params=["one process", "two processes"])
def guards(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ListGuard, ListGuard]:
    """The guards of the plugin and of the lister. A lock belongs to the open file, so two guards are two processes."""
    own = ListGuard(tmp_path)
    return own, own if request.param == "one process" else ListGuard(tmp_path)


async def test_no_list_runs_beside_an_allocate_or_shortly_after(
    guards: tuple[ListGuard, ListGuard], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, lister = guards
    monkeypatch.setattr(list_guard, "AFTER_ANSWER", 0.5)
    assert await lists(lister)
    async with allocate(plugin):
        async with allocate(plugin):
            assert not await lists(lister)
        assert not await lists(lister)
    assert not await lists(lister)  # the kubelet has not recorded the devices yet
    async with allocate(plugin):
        assert not await lists(lister)
    monkeypatch.setattr(list_guard, "PATIENCE", 60)
    assert await lists(lister)


async def test_an_allocate_does_not_wait_for_a_list_and_the_next_list_waits_for_it(tmp_path: Path) -> None:
    plugin, lister, other = ListGuard(tmp_path), ListGuard(tmp_path), ListGuard(tmp_path)
    async with lister.listing():
        allocating = allocate(plugin)
        await allocating.__aenter__()  # returns at once
        assert not await lists(other)
    await until(lambda: not can_lock(tmp_path))  # it has locked again after the List
    assert not await lists(other)
    await allocating.__aexit__(None, None, None)
    await until(lambda: can_lock(tmp_path))


async def test_an_allocate_that_was_answered_during_a_list_was_not_guarded(tmp_path: Path) -> None:
    """The lock was not tried again after the answer, nor for the next Allocate, which came soon."""
    plugin, lister, other = ListGuard(tmp_path), ListGuard(tmp_path), ListGuard(tmp_path)
    async with lister.listing():
        async with allocate(plugin):
            pass
        async with allocate(plugin):
            pass
    async with allocate(plugin):
        await until(lambda: not can_lock(tmp_path))
        assert not await lists(other)


def can_lock(directory: Path) -> bool:
    """Whether another process may lock a directory exclusively."""
    return subprocess.run(["flock", "--nonblock", directory, "true"], check=False).returncode == 0


async def test_allocates_without_a_pause_starve_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes 10 ms after the answer of the one before, of two plugins in turn."""
    monkeypatch.setattr(list_guard, "LONG", 0.1)
    monkeypatch.setattr(list_guard, "PATIENCE", 60)
    plugins, lister = (ListGuard(tmp_path), ListGuard(tmp_path)), ListGuard(tmp_path)
    is_over = False

    async def admit() -> None:
        turn = 0
        while not is_over:
            async with allocate(plugins[turn % 2]):
                await anyio.sleep(0.05)
            await anyio.sleep(0.03)
            turn += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admit)
        for _ in range(3):
            assert await lists(lister)
        is_over = True


async def test_a_killed_plugin_leaves_no_lock(tmp_path: Path) -> None:
    lister = ListGuard(tmp_path)
    with parent(f"{HOLD}    sys.stdin.read()\nasyncio.run(main())", str(tmp_path)) as plugin:
        assert plugin.line() == "held\n"
        assert not await lists(lister)
        plugin.kill()
        plugin.wait(10)
        assert await lists(lister)


async def test_a_forked_worker_of_a_killed_plugin_has_no_lock(tmp_path: Path) -> None:
    lister = ListGuard(tmp_path)
    forks = "".join(f"    {line}\n" for line in FORK.splitlines())
    with parent(f"{HOLD}{forks}    sys.stdin.read()\nasyncio.run(main())", str(tmp_path)) as plugin:
        assert plugin.line() == "held\n"
        plugin.kill_beside(int(plugin.line()))
        assert await lists(lister)


async def test_a_program_that_is_started_has_no_lock(tmp_path: Path) -> None:
    plugin, lister = ListGuard(tmp_path), ListGuard(tmp_path)
    async with allocate(plugin):
        sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)  # noqa: ASYNC220 - does not wait
    try:
        await until(lambda: not plugin._is_held.value)
        assert await lists(lister)
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_where_there_is_no_directory_the_guard_works_within_the_process(tmp_path: Path) -> None:
    guard, other = ListGuard(tmp_path / "none"), ListGuard(tmp_path / "none")
    async with allocate(guard):
        assert not await lists(guard)
        assert await lists(other)


async def test_containers_that_mount_the_directory_read_only_share_the_lock(tmp_path: Path) -> None:
    real, mounted = tmp_path / "real", tmp_path / "mounted"
    real.mkdir()
    mounted.mkdir()
    command = f"mount --bind {real} {mounted} && mount -o remount,ro,bind {mounted} && flock -n {mounted} true"
    beside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command]
    if (await anyio.run_process(beside, check=False)).returncode:
        pytest.skip("this machine lets nobody make a mount")
    async with allocate(ListGuard(real)):
        assert (await anyio.run_process(beside, check=False)).returncode == 1


def test_only_the_guarded_client_lists() -> None:
    """A List of another module would run beside Allocates."""
    source = Path(list_guard.__file__).parents[1]
    texts = {path.relative_to(source): path.read_text() for path in source.rglob("*.py")}
    client = texts.pop(Path("kubelet/podresources.py"))
    for words in ("v1.PodResourcesLister/", "ListPodResourcesResponse.FromString"):
        assert words in client
        assert [str(path) for path, text in texts.items() if words in text] == []
    assert client.count('self._call("List"') == 1
    assert 'async with self._guard.listing():\n            return await self._call("List"' in client
