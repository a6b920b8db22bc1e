"""The man in the middle, between two sockets of the test: what passes, what is changed, what is kept back."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from tests.faults import frames
from tests.faults.frames import Frame, FrameReader
from tests.faults.relay import Relay, Shape

from kdp_testkit.patience import PATIENCE

pytestmark = pytest.mark.anyio


class End:
    """One end of the connection."""

    def __init__(self, stream: anyio.abc.SocketStream, *, preface: bool) -> None:
        self.stream = stream
        self._reader = FrameReader(preface=preface)
        self._frames: list[Frame] = []

    async def send(self, *sent: Frame, preface: bytes = b"") -> None:
        await self.stream.send(preface + b"".join(frame.encode() for frame in sent))

    async def read(self) -> Frame:
        with anyio.fail_after(PATIENCE):
            while not self._frames:
                self._frames += self._reader.feed(await self.stream.receive())[1]
        return self._frames.pop(0)


@asynccontextmanager
async def relayed(shape: Shape) -> AsyncIterator[tuple[Relay, End, End]]:
    """Yield a relay, the kubelet's end and the plugin's."""
    with tempfile.TemporaryDirectory(prefix="kdp-test-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "plugin.sock"
        listener.bind(str(path))
        listener.listen()
        relay = Relay(str(path), shape)
        async with anyio.create_task_group() as tasks:
            await tasks.start(relay.serve)
            async with await anyio.connect_unix("\0" + relay.address) as kubelet:
                await anyio.wait_readable(listener)
                async with await anyio.abc.UNIXSocketStream.from_socket(listener.accept()[0]) as plugin:
                    yield relay, End(kubelet, preface=False), End(plugin, preface=True)
            tasks.cancel_scope.cancel()


DATA = Frame(frames.DATA, 0, 1, b"abc")
HEADERS = Frame(0x1, 0x4, 1, b"headers")


async def test_what_is_none_of_its_business_passes() -> None:
    async with relayed(Shape()) as (_, kubelet, plugin):
        sent = [frames.settings({4: 9}), HEADERS, DATA, frames.window_update(1, 5), frames.ping(b"12345678")]
        await kubelet.send(*sent, preface=frames.PREFACE)
        assert [await plugin.read() for _ in sent] == sent
        await plugin.send(*sent)
        assert [await kubelet.read() for _ in sent] == sent


async def test_answers_to_its_own_words_are_kept_from_the_kubelet() -> None:
    async with relayed(Shape()) as (relay, kubelet, plugin):
        await kubelet.send(frames.settings({}), preface=frames.PREFACE)
        await plugin.read()
        relay.send(frames.settings({4: 1}))
        relay.ping()
        assert (await plugin.read()).type == frames.SETTINGS
        ping = await plugin.read()
        acknowledged = Frame(frames.SETTINGS, frames.ACK, 0, b"")
        await plugin.send(acknowledged, acknowledged, Frame(frames.PING, frames.ACK, 0, ping.payload), DATA)
        assert [await kubelet.read(), await kubelet.read()] == [acknowledged, DATA], "one SETTINGS was the kubelet's"
        await relay.until_answered(1)
        assert relay.pings_answered == 1


async def test_its_windows_stand_for_the_kubelets() -> None:
    async with relayed(Shape(window=3)) as (_, kubelet, plugin):
        await kubelet.send(frames.settings({2: 0, 4: 65_535}), frames.window_update(0, 99), preface=frames.PREFACE)
        assert frames.read_settings(await plugin.read()) == {2: 0, 4: 3}
        await plugin.send(DATA)
        assert await kubelet.read() == DATA
        assert [await plugin.read(), await plugin.read()] == [frames.window_update(1, 3), frames.window_update(0, 3)]


async def test_settings_are_added() -> None:
    async with relayed(Shape(settings={0xF0: 7, 4: 1})) as (_, kubelet, plugin):
        await kubelet.send(frames.settings({2: 0, 4: 65_535}), preface=frames.PREFACE)
        assert frames.read_settings(await plugin.read()) == {2: 0, 4: 1, 0xF0: 7}


async def test_half_closed_it_still_listens() -> None:
    async with relayed(Shape()) as (relay, kubelet, plugin):
        await kubelet.send(HEADERS, preface=frames.PREFACE)
        await plugin.read()
        relay.half_close()
        with pytest.raises(anyio.EndOfStream):
            await plugin.read()
        await plugin.send(DATA)
        assert await kubelet.read() == DATA


@pytest.mark.parametrize("who", ["kubelet", "plugin"])
async def test_an_end_of_either_side_is_the_end_of_both(who: str) -> None:
    async with relayed(Shape()) as (_, kubelet, plugin):
        ends = {"kubelet": kubelet, "plugin": plugin}
        await ends.pop(who).stream.aclose()
        [other] = ends.values()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await other.read()


async def test_much_passes_in_order_although_nobody_reads_for_a_while() -> None:
    async with relayed(Shape()) as (_, kubelet, plugin):
        sent = [Frame(frames.DATA, 0, 1, bytes([number]) * 16_000) for number in range(200)]

        async def send() -> None:
            await plugin.send(*sent)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            assert [await kubelet.read() for _ in sent] == sent
