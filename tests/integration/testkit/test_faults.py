"""The kubelet misbehaves on command; most of its faults are played to a plugin in tests/integration/faults."""

from __future__ import annotations

import pytest

from kdp.testing import RegisterFault, ScenarioError, SimulatedKubelet

from .bare_plugin import RESOURCE
from .conftest import MakePlugin


async def test_a_fault_for_one_resource_lets_the_others_pass(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    """A plugin with several resources registers them in any order; a scenario about one of them must meet that one."""
    plugin = await serve()
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource="example.com/another"))
    assert await plugin.register(kubelet.paths.kubelet_socket) is None
    kubelet.faults.register(RegisterFault(code="UNKNOWN", text="no", resource=RESOURCE))
    assert await plugin.register(kubelet.paths.kubelet_socket) == "UNKNOWN: no"


async def test_the_directory_is_wiped_and_replaced(kubelet: SimulatedKubelet, serve: MakePlugin) -> None:
    directory = kubelet.paths.device_plugin_dir
    plugin = await serve()
    (directory / "state").touch()
    kubelet.faults.wipe_sockets()
    assert not plugin.path.exists()
    assert (directory / "state").exists()
    kubelet.faults.wipe_files()
    assert {path.name for path in directory.iterdir()} == {"kubelet.sock"}
    other = await serve()
    kubelet.faults.delete_socket(other.endpoint)
    assert not other.path.exists()
    with pytest.raises(ScenarioError, match="cannot be replaced under it"):
        kubelet.faults.replace_directory()
    await kubelet.crash()
    inode = directory.stat()
    kubelet.faults.replace_directory()
    assert list(directory.iterdir()) == []
    assert (directory.stat().st_ino, directory.stat().st_ctime_ns) != (inode.st_ino, inode.st_ctime_ns)


async def test_faults_can_be_combined_and_counted(kubelet: SimulatedKubelet) -> None:
    kubelet.faults.register(RegisterFault(dial=False, delay=0.0), times=2)
    assert [kubelet.faults.armed.next_register().dial for _ in range(3)] == [False, False, True]
    with pytest.raises(ScenarioError, match="a fault cannot meet 0 calls"):
        kubelet.faults.hang_register(times=0)
