"""The kubelet's calls when the backend, the request or the node is at fault: one pod fails, with one sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.faults import FaultyKubelet
from typing_extensions import override

import kdp
from kdp.supervision.supervisor import Deadlines
from kdp.testing import AdmissionError, CallError, ContainerStartError, Pod
from kdp_testkit.patience import PATIENCE

from ..deviceplugin.helpers import QUICK, RESOURCE, Block, Widgets, connected, registers, until
from .catalogue import Fault
from .conftest import Said, Saw, state_of


class Allocating(Widgets):
    """Allocates well until ``trouble`` is set; then that is called instead."""

    trouble: Callable[[], Any] | None = None
    allocations = 0

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        self.allocations += 1
        if self.trouble is not None:
            return self.trouble()  # type: ignore[no-any-return]
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})


def _raise() -> None:
    raise RuntimeError("the vendor's secret is 42")


def _refuse() -> None:
    raise kdp.AllocationError("this widget needs a licence; ask the platform team")


ALLOCATIONS: Mapping[Fault, tuple[Callable[[], Any], str]] = {
    Fault.ALLOCATE_RAISES: (_raise, "INTERNAL"),
    Fault.ALLOCATE_REFUSES: (_refuse, "FAILED_PRECONDITION"),
    Fault.ALLOCATE_RELATIVE_PATH: (lambda: kdp.ContainerEdits.of_node("dev/widget0"), "INTERNAL"),
    Fault.ALLOCATE_PERMISSIONS: (lambda: kdp.DeviceNode(host_path="/dev/null", permissions="rwx"), "INTERNAL"),
    Fault.ALLOCATE_TYPE: (lambda: {"WIDGETS": "w0"}, "INTERNAL"),
    Fault.ALLOCATE_NO_NODE: (lambda: kdp.ContainerEdits.of_node("/dev/widget-that-is-not-there"), "INTERNAL"),
    Fault.ALLOCATE_NO_MOUNT: (
        lambda: kdp.ContainerEdits(mounts=[kdp.Mount(host_path="/opt/widget-that-is-not-there")]),
        "INTERNAL",
    ),
}


async def fails(call: Awaitable[object], code: str) -> str:
    """Return the sentence of a call that fails with this code."""
    with pytest.raises(CallError) as failure:
        await call
    assert failure.value.code == code
    assert "Traceback" not in failure.value.detail
    assert "secret" not in failure.value.detail
    assert len(failure.value.detail) < 2048
    return failure.value.detail


@pytest.mark.parametrize("fault", ALLOCATIONS, ids=lambda fault: fault.name)
async def test_a_failing_allocate_fails_one_pod(k: FaultyKubelet, saw: Saw, fault: Fault) -> None:
    backend = Allocating("w0", "w1")
    async with connected(k, backend) as manager:
        backend.trouble, code = ALLOCATIONS[fault]
        sentence = await fails(k.plugin(RESOURCE).allocate(["w0"]), code)
        with pytest.raises(AdmissionError) as refused:
            await k.admit(Pod.asking({RESOURCE: 1}))
        assert sentence in refused.value.message
        saw(fault, sentence, state_of(manager))
        backend.trouble = None
        await k.admit(Pod.asking({RESOURCE: 2}))
        assert len(registers(k)) == k.streams(RESOURCE) == 1


async def test_a_hanging_allocate_fails_its_pods_and_no_other(
    k: FaultyKubelet, saw: Saw, block: Callable[[], Block]
) -> None:
    """Scenario 42."""
    backend, stuck = Allocating("w0", "w1"), block()
    other = Widgets("o0", resource="example.com/other")
    async with connected(k, backend, other, deadlines=QUICK) as manager:
        backend.trouble = stuck
        sentence = await fails(k.plugin(RESOURCE).allocate(["w0"]), "DEADLINE_EXCEEDED")
        saw(Fault.ALLOCATE_HANGS, sentence, state_of(manager))
        await fails(k.plugin(RESOURCE).allocate(["w1"]), "DEADLINE_EXCEEDED")
        assert backend.allocations == 1  # not called again while it hangs
        await k.plugin("example.com/other").allocate(["o0"])
        await k.plugin(RESOURCE).options()
        backend.devices.append(kdp.Device(id="w2"))
        manager.rescan()
        await k.until(capacity={RESOURCE: 3})
        backend.trouble = None
        stuck.release()
        [reply] = await k.plugin(RESOURCE).allocate(["w1"])
        assert dict(reply.envs) == {"WIDGETS": "w1"}


def _with_env(device_id: str, value: str) -> kdp.Device:
    return kdp.Device(id=device_id, edits=kdp.ContainerEdits(env={"WIDGET_MODE": value}))


async def test_two_devices_that_contradict_each_other(k: FaultyKubelet, saw: Saw) -> None:
    async with connected(k, Widgets(_with_env("w0", "fast"), _with_env("w1", "slow"))) as manager:
        sentence = await fails(k.plugin(RESOURCE).allocate(["w1", "w0"]), "INTERNAL")
        assert "'w0' and 'w1'" in sentence
        saw(Fault.ENV_CONFLICT, sentence, state_of(manager))
        [reply] = await k.plugin(RESOURCE).allocate(["w1"])
        assert dict(reply.envs) == {"WIDGET_MODE": "slow"}


async def test_an_unknown_id(k: FaultyKubelet, saw: Saw) -> None:
    """Scenario 37."""
    async with connected(k, Widgets("w0")) as manager:
        sentence = await fails(k.plugin(RESOURCE).allocate(["w0", "w7"]), "INVALID_ARGUMENT")
        saw(Fault.UNKNOWN_ID, sentence, state_of(manager))
        assert k.streams(RESOURCE) == 1


async def test_an_unhealthy_device(k: FaultyKubelet, saw: Saw) -> None:
    """Scenario 38: the list has been pushed already."""
    backend = Widgets("w0", "w1")
    async with connected(k, backend) as manager:
        (await backend.report()).fault("w0", "fan failed")
        await k.until(allocatable={RESOURCE: 1})
        sentence = await fails(k.plugin(RESOURCE).allocate(["w0"]), "FAILED_PRECONDITION")
        assert sentence.endswith("fan failed")
        saw(Fault.UNHEALTHY_ID, sentence, state_of(manager))


async def test_a_request_without_devices(k: FaultyKubelet, saw: Saw) -> None:
    """Scenario 40."""
    async with connected(k, Widgets("w0")) as manager:
        sentence = await fails(k.plugin(RESOURCE).allocate([]), "INVALID_ARGUMENT")
        saw(Fault.NO_ID, sentence, state_of(manager))
        assert await k.plugin(RESOURCE).allocate() == []


# -- GetPreferredAllocation: an error would fail the pod ---------------------------------------------------------------


class Preferring(Widgets):
    trouble: Callable[[], Any] | None = None

    @override
    def prefer(self, request: kdp.PreferRequest) -> list[str]:
        if self.trouble is not None:
            return self.trouble()  # type: ignore[no-any-return]
        return sorted(device.id for device in request.available)[: request.size]


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [(Fault.PREFER_RAISES, _raise), (Fault.PREFER_WRONG, lambda: ["w7"]), (Fault.PREFER_HANGS, None)],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
async def test_a_preference_never_fails_a_pod(
    k: FaultyKubelet,
    saw: Saw,
    said: Said,
    block: Callable[[], Block],
    fault: Fault,
    trouble: Callable[[], Any] | None,
) -> None:
    backend, stuck = Preferring("w0", "w1", "w2"), block()
    # Beside a busy machine's processes, 50 ms may be over before a hook that does not hang has begun.
    deadlines = Deadlines() if fault is Fault.PREFER_HANGS else Deadlines(prefer=PATIENCE)
    async with connected(k, backend, deadlines=deadlines) as manager:
        backend.trouble = trouble or stuck
        assert await k.plugin(RESOURCE).preferred(["w0", "w1", "w2"], [], 1) == [()]
        sentence = await said("no preference")
        assert "secret" not in sentence
        await k.admit(Pod.asking({RESOURCE: 1}))
        saw(fault, sentence, state_of(manager))
        backend.trouble = None
        stuck.release()
        await until(lambda: not stuck.is_entered or stuck.is_over)
        assert await k.plugin(RESOURCE).preferred(["w2", "w1"], [], 1) == [("w1",)]


# -- PreStartContainer -------------------------------------------------------------------------------------------------


class Preparing(Widgets):
    trouble: Callable[[], Any] | None = None
    prepared = 0

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        self.prepared += 1
        if self.trouble is not None:
            self.trouble()


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Fault.PREPARE_RAISES, "INTERNAL"), (Fault.PREPARE_HANGS, "DEADLINE_EXCEEDED")],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
async def test_a_failing_preparation_fails_this_start(
    k: FaultyKubelet, saw: Saw, block: Callable[[], Block], fault: Fault, code: str
) -> None:
    """Scenario 53: our sentence arrives before the kubelet's deadline."""
    backend, stuck = Preparing("w0"), block()
    async with connected(k, backend, deadlines=QUICK) as manager:
        pod = Pod.asking({RESOURCE: 1})
        backend.trouble = _raise if fault is Fault.PREPARE_RAISES else stuck
        with pytest.raises(ContainerStartError) as failure:
            await k.admit(pod)
        assert "secret" not in failure.value.message
        sentence = await fails(k.plugin(RESOURCE).pre_start(["w0"]), code)
        stuck.release()
        backend.trouble = None
        await k.start_container(pod)
        saw(fault, sentence, state_of(manager))


async def test_the_kubelets_own_deadline_is_met(k: FaultyKubelet, block: Callable[[], Block]) -> None:
    backend = Preparing("w0")
    async with connected(k, backend):
        backend.trouble = block()
        with pytest.raises(CallError) as failure:
            await k.plugin(RESOURCE).pre_start(["w0"], timeout=0.8)
        assert "prepare_container() of Preparing did not return" in failure.value.detail
        with pytest.raises(CallError):
            await k.plugin(RESOURCE).pre_start(["w0"], timeout=0.001)


async def test_a_mount_that_vanished_is_no_empty_directory(k: FaultyKubelet, tmp_path: Path) -> None:
    source = tmp_path / "lib"
    source.mkdir()
    device = kdp.Device(id="w0", edits=kdp.ContainerEdits(mounts=[kdp.Mount(host_path=source)]))
    async with connected(k, Widgets(device)):
        [reply] = await k.plugin(RESOURCE).allocate(["w0"])
        assert [mount.host_path for mount in reply.mounts] == [str(source)]
        source.rmdir()
        assert "does not exist" in await fails(k.plugin(RESOURCE).allocate(["w0"]), "FAILED_PRECONDITION")
