"""The watch for a kubelet, on real sockets in real directories. All deadlines are far below the floor of 30 s."""

# ruff: noqa: ASYNC240 - short looks at local files

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kdp.errors import PluginDirectoryGoneError
from kdp.kubelet.watch import FLOOR, KubeletState, KubeletView, KubeletWatch, look

pytestmark = pytest.mark.anyio

LONG = FLOOR * 0.8


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kdp-test-") as name:
        plugins = Path(name) / "device-plugins"
        plugins.mkdir()
        yield plugins


def listen(path: Path, backlog: int = 8) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(backlog)
    return server


def state(path: Path) -> KubeletState:
    return look(path).state


# -- one look ----------------------------------------------------------------------------------------------------------


def test_who_listens_is_listening(directory: Path) -> None:
    with listen(directory / "kubelet.sock"):
        view = look(directory / "kubelet.sock")
        found = os.stat(directory / "kubelet.sock")
        assert view == KubeletView(KubeletState.LISTENING, (found.st_dev, found.st_ino, found.st_ctime_ns))


def test_a_dead_file_proves_nothing(directory: Path) -> None:
    listen(directory / "kubelet.sock").close()
    assert state(directory / "kubelet.sock") is KubeletState.DEAD


def test_what_is_no_socket(directory: Path) -> None:
    path = directory / "kubelet.sock"
    assert look(path) == KubeletView(KubeletState.ABSENT)
    path.mkdir()
    assert state(path) is KubeletState.NO_SOCKET
    path.rmdir()
    path.touch()
    assert state(path) is KubeletState.NO_SOCKET
    path.unlink()
    os.mkfifo(path)
    assert state(path) in (KubeletState.NO_SOCKET, KubeletState.DEAD)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(path))
        assert state(path) is KubeletState.NO_SOCKET


def test_without_a_directory_there_is_no_kubelet(directory: Path) -> None:
    assert state(directory / "none/kubelet.sock") is KubeletState.NO_DIRECTORY


def test_root_was_asked_for_if_the_directory_is_a_file(directory: Path) -> None:
    (directory / "file").touch()
    assert state(directory / "file/kubelet.sock") is KubeletState.NOT_A_DIRECTORY


def test_a_path_that_cannot_be_examined(directory: Path) -> None:
    (directory / "loop").symlink_to("loop")
    assert state(directory / "loop/kubelet.sock") is KubeletState.UNREADABLE


NO_DESCRIPTOR = """
import os, resource, sys
from pathlib import Path
from kdp.kubelet.watch import look

free = os.open("/", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(look(Path(sys.argv[1])).state.name)
"""


def test_without_a_free_descriptor_the_look_says_so_and_raises_nothing(directory: Path) -> None:
    """socket(2) fails with EMFILE; it was an error that ended the watch and the process with it."""
    path = directory / "kubelet.sock"
    with listen(path):
        command = [sys.executable, "-c", NO_DESCRIPTOR, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("NO_DESCRIPTOR", "")


# -- the watch ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watching(directory: Path) -> AsyncIterator[KubeletWatch]:
    watch = KubeletWatch(directory)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.lowlevel.checkpoint()
        yield watch
        tasks.cancel_scope.cancel()


async def until(watch: KubeletWatch, found: Callable[[KubeletView], bool] | KubeletState) -> KubeletView:
    with anyio.fail_after(LONG):
        while True:
            view, version = watch.view.value, watch.view.version
            if view.state is found if isinstance(found, KubeletState) else found(view):
                return view
            await watch.view.after(version)


async def listening(watch: KubeletWatch, directory: Path) -> None:
    """Return when the watch hears of the directory's events, and has heard of all so far: it sees a socket of ours."""
    with anyio.fail_after(LONG):
        for number in itertools.count():
            version = watch.view.version
            (directory / f"kdp-marker-{number}.sock").touch()
            with anyio.move_on_after(0.3):
                await watch.view.after(version)
                return


async def test_a_kubelet_is_found_as_soon_as_it_listens(directory: Path) -> None:
    async with watching(directory) as watch:
        assert (await until(watch, KubeletState.ABSENT)).identity is None
        with listen(directory / "kubelet.sock"):
            assert (await until(watch, KubeletState.LISTENING)).identity is not None


async def test_between_bind_and_listen_it_is_tried_again_at_once(directory: Path) -> None:
    """Scenario 20: no event tells of listen(2)."""
    async with watching(directory) as watch:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(directory / "kubelet.sock"))
            await until(watch, KubeletState.DEAD)
            server.listen()
            await until(watch, KubeletState.LISTENING)


async def test_a_kubelet_that_has_bound_and_does_not_listen_is_told_from_a_dead_file(directory: Path) -> None:
    async with watching(directory) as watch:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(directory / "kubelet.sock"))
            await until(watch, KubeletState.BOUND)
        await until(watch, KubeletState.DEAD)


async def test_a_restarted_kubelet_has_another_identity(directory: Path) -> None:
    """Scenario 19: the inode number may be the same."""
    path = directory / "kubelet.sock"
    identities = set()
    async with watching(directory) as watch:
        for _ in range(5):
            with listen(path):
                view = await until(watch, KubeletState.LISTENING)
                assert view.identity not in identities
                identities.add(view.identity)
            path.unlink()
            await until(watch, KubeletState.ABSENT)


async def test_the_kubelets_checkpoint_is_noise(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 25: it writes into this directory after every list; an answer to that would never end."""
    looks: list[KubeletView] = []

    def counted(path: Path) -> KubeletView:
        looks.append(look(path))
        return looks[-1]

    monkeypatch.setattr("kdp.kubelet.watch.look", counted)
    with listen(directory / "kubelet.sock"):
        async with watching(directory) as watch:
            await until(watch, KubeletState.LISTENING)
            await listening(watch, directory)
            before = len(looks)
            for number in range(100):
                (directory / f".checkpoint-{number}").touch()
                (directory / f".checkpoint-{number}").rename(directory / "kubelet_internal_checkpoint")
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            await listening(watch, directory)
            assert len(looks) - before < 10, "only at our own markers"


async def test_what_happens_to_our_own_sockets_is_told(directory: Path) -> None:
    async with watching(directory) as watch:
        await until(watch, KubeletState.ABSENT)
        await listening(watch, directory)
        version = watch.view.version
        (directory / "kdp-marker-0.sock").unlink()
        with anyio.fail_after(LONG):
            await watch.view.after(version)


@pytest.mark.parametrize("gone", ["removed", "replaced"])
async def test_a_kubelet_in_a_directory_that_was_made_anew_is_found(directory: Path, gone: str) -> None:
    """Scenario 24, where no mount pins the old one."""
    async with watching(directory) as watch:
        with listen(directory / "kubelet.sock"):
            await until(watch, KubeletState.LISTENING)
            if gone == "removed":
                shutil.rmtree(directory)
                await until(watch, KubeletState.NO_DIRECTORY)
            else:
                directory.rename(directory.with_name("old"))
        directory.mkdir()
        with listen(directory / "kubelet.sock"):
            await until(watch, lambda view: view.state is KubeletState.LISTENING)
            await listening(watch, directory)


@asynccontextmanager
async def ending(directory: Path, *, within: float) -> AsyncGenerator[KubeletWatch]:
    """Watch a directory that is pinned; what the block does to it ends the watch within so many seconds."""
    pinned = os.open(directory, os.O_RDONLY)
    try:
        watch = KubeletWatch(Path(f"/proc/self/fd/{pinned}"))
        with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.run)
                yield watch
                with anyio.fail_after(within):
                    await anyio.sleep_forever()
    finally:
        os.close(pinned)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, PluginDirectoryGoneError)
    assert str(error).startswith(
        f"plugin directory /proc/self/fd/{pinned} was removed while this process has it mounted"
    )


async def test_a_pinned_directory_that_is_unlinked_ends_it(directory: Path) -> None:
    """Scenario 24, where a mount pins the old one: here a descriptor does."""
    async with ending(directory, within=LONG) as watch:
        await until(watch, KubeletState.ABSENT)
        directory.rmdir()
        watch.look()


async def test_a_pinned_directory_that_goes_just_after_its_last_file_ends_it(directory: Path) -> None:
    """The look that the file's end asked for came before the directory's, of which no event tells: 30 s were lost."""
    with listen(directory / "kubelet.sock"):
        async with ending(directory, within=LONG / 2) as watch:
            watch.look()
            await until(watch, KubeletState.LISTENING)
            await listening(watch, directory)  # nothing that came before is left to be told
            version = watch.view.version
            for marker in list(directory.glob("kdp-marker-*")):
                marker.unlink()
            await watch.view.after(version)
            (directory / "kubelet.sock").unlink()
            await until(watch, KubeletState.ABSENT)
            directory.rmdir()
