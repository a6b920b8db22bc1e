"""What the end of a stream does, in each version of the kubelet (contract sections 2.5 and 5)."""

from __future__ import annotations

import anyio
import pytest

from kdp.testing import ScenarioError, SimulatedKubelet, events

from .bare_plugin import RESOURCE, BarePlugin
from .conftest import MakePlugin


@pytest.mark.parametrize("how", ["dropped", "severed"])
async def test_the_end_of_the_stream_makes_all_devices_unhealthy(
    kubelet: SimulatedKubelet, connect: MakePlugin, how: str
) -> None:
    await connect()
    if how == "dropped":
        kubelet.drop_stream(RESOURCE)
    else:
        kubelet.sever(RESOURCE)
    await kubelet.until(capacity={RESOURCE: 2}, allocatable={RESOURCE: 0})
    await kubelet.until(lambda: kubelet.events.of(events.Disconnected))

    [ended] = kubelet.events.of(events.StreamEnded)
    assert ended.code == {"dropped": "CANCELLED", "severed": "UNAVAILABLE"}[how]
    assert kubelet.streams(RESOURCE) == 0
    assert kubelet.devices(RESOURCE)["w0"].health == "Healthy"  # the table keeps what was listed last
    with pytest.raises(ScenarioError, match="no open stream"):
        kubelet.drop_stream(RESOURCE)


async def test_an_old_stream_that_ends_while_its_successor_is_dialed_strips_the_successors_record() -> None:
    async with SimulatedKubelet(profile="k136") as kubelet:
        old = BarePlugin(kubelet.paths.device_plugin_dir)
        await old.serve()
        await old.register(kubelet.paths.kubelet_socket)
        await kubelet.until(streaming=RESOURCE)
        new = BarePlugin(kubelet.paths.device_plugin_dir)
        answers: list[str | None] = []

        async def register() -> None:
            answers.append(await new.register(kubelet.paths.kubelet_socket))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(register)
            await kubelet.until(lambda: len(kubelet.events.of(events.RegisterReceived)) == 2)
            await old.stop()
            await kubelet.until(lambda: kubelet.events.of(events.Disconnected))
            await new.serve()  # only now can it be dialed
        assert answers == [None]
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        await new.stop()
        await kubelet.until(lambda: len(kubelet.events.of(events.StreamEnded)) == 2)
        assert kubelet.allocatable() == {RESOURCE: 2}, "nobody notices its end: phantom devices"
