"""A plugin whose answers are no messages: the kubelet ends the call or the stream, and so does the simulated one."""

from __future__ import annotations

import pytest

from kdp.testing import AdmissionError, CallError, Pod, SimulatedKubelet, events
from kdp_testkit.protocol.wire import PluginConnection

from .bare_plugin import RESOURCE
from .conftest import MakePlugin

UNREADABLE = "failed to unmarshal the received message"


async def test_an_allocation_that_cannot_be_read_refuses_the_pod(
    kubelet: SimulatedKubelet, connect: MakePlugin
) -> None:
    plugin = await connect()
    plugin.rubbish.add("Allocate")
    with pytest.raises(AdmissionError, match=UNREADABLE):
        await kubelet.admit(Pod.asking({RESOURCE: 1}))
    plugin.rubbish.clear()
    await kubelet.admit(Pod.asking({RESOURCE: 1}))


async def test_a_list_that_cannot_be_read_ends_the_stream(kubelet: SimulatedKubelet, connect: MakePlugin) -> None:
    plugin = await connect()
    plugin.rubbish.add("ListAndWatch")
    plugin.change({"w0": "Unhealthy"})
    await kubelet.until(lambda: kubelet.events.of(events.StreamEnded))
    [ended] = kubelet.events.of(events.StreamEnded)
    assert (ended.code, UNREADABLE in ended.detail) == ("INTERNAL", True)
    await kubelet.until(allocatable={RESOURCE: 0})


async def test_who_asks_directly_is_told(connect: MakePlugin) -> None:
    plugin = await connect()
    connection = PluginConnection(str(plugin.path))
    await connection.dial()
    plugin.rubbish.update(("GetDevicePluginOptions", "GetInfo", "ListAndWatch"))
    for asked in (connection.options(), connection.info()):
        with pytest.raises(CallError, match=UNREADABLE):
            await asked
    stream = connection.watch()
    assert await stream.next() is None
    assert stream.ending[0] == "INTERNAL"
    await connection.close()
