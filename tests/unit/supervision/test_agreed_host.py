from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.errors import ConfigurationError
from kdp.hardware import Host
from kdp.supervision.backend_validation import agreed_host


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(self, host: Host) -> None:
        self._files = host

    @override
    def discover(self) -> list[kdp.Device]:
        return []


class Wrapper(kdp.DeviceBackend):
    resource = "example.com/shared"

    def __init__(self, inner: kdp.DeviceBackend) -> None:
        self.inner = inner

    @override
    def discover(self) -> list[kdp.Device]:
        return []


def test_the_backends_host_is_the_process_s(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert agreed_host([Widgets(host)]) is host
    assert agreed_host([Wrapper(Wrapper(Widgets(host)))]) is host
    assert agreed_host([Widgets(Host(tmp_path))], host) is host
    assert agreed_host([]) == Host()
    assert agreed_host([], host) is host


def test_two_that_differ_are_a_sentence(tmp_path: Path) -> None:
    told = (
        rf"^Widgets reads the node's files at {tmp_path}, but host_root says /host; give both the same "
        "kdp.hardware.Host, or start it with the command kdp, which does$"
    )
    with pytest.raises(ConfigurationError, match=told):
        agreed_host([Widgets(Host(tmp_path))], Host("/host"))
    with pytest.raises(ConfigurationError, match="but host_root says"):
        PluginManager([Widgets(Host(tmp_path))], ManagerOptions(host=Host("/host")))
    with pytest.raises(ConfigurationError, match="Wrapper reads the node's files at /b, but Widgets says /a"):
        agreed_host([Widgets(Host("/a")), Wrapper(Widgets(Host("/b")))])
