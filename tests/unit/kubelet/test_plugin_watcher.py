"""What the plugin watcher is told of a plugin, and what the plugin makes of its verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kdp.kubelet.plugin_watcher import Registration
from kdp.proto import pluginregistration_v1_pb2 as pb


async def ask(registration: Registration, method: str, request: bytes) -> bytes:
    """Call a method as a gRPC server does."""
    details: Any = SimpleNamespace(method=f"/pluginregistration.Registration/{method}", invocation_metadata=())
    found: Any = registration.handler().service(details)
    decode = found.request_deserializer or (lambda data: data)
    answer: bytes = await found.unary_unary(decode(request), None)
    return answer


async def test_the_plugin_watcher_is_told_and_heard() -> None:
    asked: list[str] = []
    heard: list[str | None] = []
    registration = Registration(
        type="DevicePlugin",
        name="example.com/widget",
        versions=("v1beta1",),
        notified=heard.append,
        asked=lambda: asked.append("GetInfo"),
    )
    info = pb.PluginInfo.FromString(await ask(registration, "GetInfo", b""))
    assert (info.type, info.name, list(info.supported_versions)) == ("DevicePlugin", "example.com/widget", ["v1beta1"])
    assert info.endpoint == ""
    assert asked == ["GetInfo"]
    for status in (
        pb.RegistrationStatus(plugin_registered=True),
        pb.RegistrationStatus(plugin_registered=False, error="no"),
        pb.RegistrationStatus(plugin_registered=False),
    ):
        assert await ask(registration, "NotifyRegistrationStatus", status.SerializeToString()) == b""
    assert heard == [None, "no", "it gave no reason"]


async def test_a_driver_names_the_socket_of_its_services() -> None:
    registration = Registration(
        type="DRAPlugin", name="widget.example.com", versions=("v1.DRAPlugin",), endpoint="/a.sock", notified=print
    )
    info = pb.PluginInfo.FromString(await ask(registration, "GetInfo", b""))
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "widget.example.com", "/a.sock")
