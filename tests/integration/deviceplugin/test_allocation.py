"""Allocate, GetPreferredAllocation and PreStartContainer as the kubelet calls them (contract sections 6 and 7)."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin.options import Pace
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, CallError, Container, Pod, SimulatedKubelet

from .helpers import RESOURCE, Widgets, connected, registers, until


def widget(device_id: str) -> kdp.Device:
    edits = kdp.ContainerEdits(
        env={"WIDGETS": device_id},
        device_nodes=[kdp.DeviceNode(host_path="/dev/null", container_path=f"/dev/{device_id}")],
        annotations={"example.com/widgets": "yes"},
    )
    return kdp.Device(id=device_id, edits=edits)


class Joined(Widgets):
    joined_env: Mapping[str, str] = MappingProxyType({"WIDGETS": ","})


async def test_a_pod_gets_what_the_devices_declare(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    """Scenario 33; the reply is whole."""
    library = tmp_path / "libwidget.so"
    library.touch()
    mount = kdp.Mount(host_path=library, container_path="/usr/lib/libwidget.so", read_only=True)
    device = kdp.Device(id="w0", edits=kdp.ContainerEdits.merge([("w0", widget("w0").edits), ("m", _mounts(mount))]))
    async with connected(kubelet, Joined(device)):
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 1}))
        reply = admitted.reply("main")
        assert dict(reply.envs) == {"WIDGETS": "w0"}
        assert dict(reply.annotations) == {"example.com/widgets": "yes"}
        [node] = reply.devices
        assert (node.container_path, node.host_path, node.permissions) == ("/dev/w0", "/dev/null", "rw")
        [mounted] = reply.mounts
        assert (mounted.container_path, mounted.host_path, mounted.read_only) == (
            "/usr/lib/libwidget.so",
            str(library),
            True,
        )


def _mounts(mount: kdp.Mount) -> kdp.ContainerEdits:
    return kdp.ContainerEdits(mounts=[mount])


async def test_the_order_of_ids_means_nothing(kubelet: SimulatedKubelet) -> None:
    """Scenario 34."""
    seen: list[tuple[str, ...]] = []

    class Noting(Joined):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            seen.append(devices.ids)
            return kdp.ContainerEdits.merge(((d.id, d.edits) for d in devices), joined_env=self.joined_env)

    async with connected(kubelet, Noting(*(widget(f"w{i}") for i in range(8)))):
        ids = [f"w{i}" for i in range(8)]
        replies = []
        for _ in range(3):
            random.shuffle(ids)
            replies += await kubelet.plugin(RESOURCE).allocate(ids)
        assert replies[0] == replies[1] == replies[2]
        assert seen == [tuple(sorted(ids))] * 3
        assert dict(replies[0].envs) == {"WIDGETS": ",".join(sorted(ids))}


async def test_not_ready_from_allocate_closes_and_opens_again(kubelet: SimulatedKubelet) -> None:
    class Away(Widgets):
        opened = 0

        @override
        def open(self) -> None:
            self.opened += 1

        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            if self.opened < 2:
                raise kdp.NotReady("the driver is being updated")
            return kdp.ContainerEdits()

    backend = Away("w0")
    async with connected(kubelet, backend):
        with pytest.raises(CallError, match="the driver is being updated") as failure:
            await kubelet.plugin(RESOURCE).allocate(["w0"])
        assert failure.value.code == "UNAVAILABLE"
        await until(lambda: backend.opened == 2)
        await kubelet.until(allocatable={RESOURCE: 1})
        await kubelet.plugin(RESOURCE).allocate(["w0"])
        assert len(registers(kubelet)) == 1


# -- GetPreferredAllocation --------------------------------------------------------------------------------------------


class Choosy(Widgets):
    """Prefers what comes last, and keeps what it was asked."""

    def __init__(self, *devices: str) -> None:
        super().__init__(*devices)
        self.asked: list[kdp.PreferRequest] = []

    @override
    def prefer(self, request: kdp.PreferRequest) -> list[str]:
        self.asked.append(request)
        must = [device.id for device in request.must_include]
        rest = sorted((d.id for d in request.available if d.id not in must), reverse=True)
        return [*must, *rest][: request.size]


PATIENT = Deadlines(prefer=20.0)
"""A busy machine may take longer than the 50 ms that `prefer` has; tests of the deadline itself are others."""


async def test_a_preference_is_followed(kubelet: SimulatedKubelet) -> None:
    """Scenarios 48 to 50."""
    backend = Choosy("w0", "w1", "w2", "w3")
    ids = ["w0", "w1", "w2", "w3"]
    async with connected(kubelet, backend, deadlines=PATIENT):
        plugin = kubelet.plugin(RESOURCE)
        assert await plugin.preferred(ids, [], 4) == [("w3", "w2", "w1", "w0")]
        assert await plugin.preferred(ids, ["w1", "w0"], 2) == [("w1", "w0")]
        assert await plugin.preferred(ids, ["w0"], 2) == [("w0", "w3")]
        assert await plugin.preferred(["w0"], [], 3) == [()]  # impossible, and no error
        assert await plugin.preferred([], [], 0) == [()]
        admitted = await kubelet.admit(Pod.asking({RESOURCE: 2}))
        assert set(admitted.devices(RESOURCE)) == {"w2", "w3"}
        assert {d.id for d in backend.asked[-1].available} == set(ids)
        assert backend.asked[-1].size == 2


# -- PreStartContainer -------------------------------------------------------------------------------------------------


class Prepared(Widgets):
    def __init__(self, *devices: str) -> None:
        super().__init__(*devices)
        self.prepared: list[tuple[str, ...]] = []

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self.prepared.append(devices.ids)


async def test_every_start_is_prepared(kubelet: SimulatedKubelet) -> None:
    """Scenario 52; also after a restart of the kubelet, once we are registered."""
    backend = Prepared("w0", "w1")
    pod = Pod.asking({RESOURCE: 2})
    async with connected(kubelet, backend):
        await kubelet.admit(pod)
        await kubelet.start_container(pod)
        await kubelet.restart()
        await kubelet.until(allocatable={RESOURCE: 2}, registered=RESOURCE)
        await kubelet.readmit()
        await kubelet.start_container(pod)
        assert backend.prepared == [("w0", "w1")] * 3


async def test_an_unhealthy_device_may_start_again(kubelet: SimulatedKubelet) -> None:
    """The kubelet starts containers on unhealthy devices without asking (contract section 9); the hook decides."""
    backend = Prepared("w0")
    pod = Pod.asking({RESOURCE: 1})
    async with connected(kubelet, backend):
        await kubelet.admit(pod)
        (await backend.report()).fault("w0", "XID 79")
        await kubelet.until(allocatable={RESOURCE: 0})
        await kubelet.start_container(pod)
        assert len(backend.prepared) == 2


class Counting(Widgets):
    """Widgets that count what they are asked."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.allocated: list[tuple[str, ...]] = []

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.allocated.append(devices.ids)
        return kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)


async def test_allocate_is_called_once_for_each_container_and_never_at_a_restart(kubelet: SimulatedKubelet) -> None:
    backend = Counting("w0", "w1")
    containers = [Container(name, limits={RESOURCE: 1}) for name in ("one", "two")]
    pod = Pod(name="pod", containers=containers)
    async with connected(kubelet, backend):
        await kubelet.admit(pod)
        assert sorted(backend.allocated) == [("w0",), ("w1",)]
        for name in ("one", "two"):
            await kubelet.start_container(pod, name)
        for reboot in (False, True):
            await kubelet.restart(reboot=reboot)
            await kubelet.until(allocatable={RESOURCE: 2}, registered=RESOURCE)
            await kubelet.readmit()
        assert sorted(backend.allocated) == [("w0",), ("w1",)]


async def test_a_refused_allocate_leaves_a_line_and_a_flood_of_them_two(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod showed the reason, and the plugin's log had nothing of it."""
    monkeypatch.setattr("kdp.deviceplugin.refusal_log.PERIOD", 3600.0)
    caplog.set_level(logging.INFO)

    class Choosy(Widgets):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            raise kdp.AllocationError("not these")

    async with connected(kubelet, Choosy("w0", "w1")):
        for _ in range(20):
            with pytest.raises(AdmissionError):
                await kubelet.admit(Pod.asking({RESOURCE: 2}))
    told = [record for record in caplog.records if "refused" in record.message]
    assert [(record.levelname, record.message) for record in told] == [
        ("INFO", f"{RESOURCE}: Allocate of w0, w1 was refused: not these"),
        ("INFO", f"{RESOURCE}: 19 more Allocates were refused in 3600 s: not these"),
    ]


async def test_a_hook_that_raises_is_a_warning_where_a_refusal_on_purpose_is_none(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Widgets):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            raise OSError("the card does not answer")

    async with connected(kubelet, Broken("w0")):
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))
    [told] = [record for record in caplog.records if "Allocate of w0 was refused" in record.message]
    assert told.levelname == "WARNING"


async def test_the_pods_are_known_while_a_person_looks(kubelet: SimulatedKubelet) -> None:
    """Nothing else asks the kubelet here; a list of long ago tells nothing of now."""
    pace = Pace(between=0.05, follow=0.1, look=0.5)
    async with connected(kubelet, Widgets("w0"), pace=pace) as manager:

        def holders() -> Mapping[str, str] | None:
            return manager.status().resources[RESOURCE].holders

        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-0"))
        await until(lambda: holders() is None)

        await manager.look_at_holders()
        assert holders() == {"w0": "default/train-0 (main)"}
        await until(lambda: holders() is None)


async def test_no_line_said_which_pod_a_granted_allocate_was_for(
    kubelet: SimulatedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet does not say it with the call; its next list does."""
    caplog.set_level(logging.DEBUG, logger="kdp")
    async with kubelet.serving(Widgets("w0")) as manager:
        manager.want_holders()
        await until(lambda: manager.holders(RESOURCE) is not None)
        await kubelet.admit(Pod.asking({RESOURCE: 1}, name="train-0"))
        manager.want_holders()
        await until(lambda: [r for r in caplog.records if "is held by default/train-0 (main)" in r.message])
    [told] = [r for r in caplog.records if "is held by" in r.message]
    assert (told.levelname, told.message) == ("DEBUG", f"{RESOURCE}: w0 is held by default/train-0 (main)")
