"""Recordings played to the plugin that made them, to another one, and to changed ones that must be found out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from typing_extensions import override

import kdp
from kdp.deviceplugin import ManagerOptions, PluginManager
from kdp.testing import ListedDevice, Pod, ReplayDiffers, SimulatedKubelet, SysfsTree, replay
from kdp_example_minimal import Fuse
from kdp_testkit.patience import PATIENCE
from kdp_testkit.recording import RecordingError, Replay, of_command, read

from .helpers import RESOURCE, Widgets, exists, put, recording, text_of

BARE = [sys.executable, str(Path(__file__).parent / "bare_process.py"), "{device_plugins}"]


async def a_day(kubelet: SimulatedKubelet) -> None:
    """What happens to a plugin of two widgets: a pod, a killed kubelet, another pod, an impossible request."""
    await kubelet.until(allocatable={RESOURCE: 2}, timeout=PATIENCE)
    await kubelet.admit(Pod.asking({RESOURCE: 1}))
    await kubelet.restart()
    await kubelet.until(allocatable={RESOURCE: 2})
    await kubelet.readmit()
    await kubelet.admit(Pod.asking({RESOURCE: 1}))


@pytest.fixture
async def kdps(kubelet: SimulatedKubelet, tmp_path: Path) -> Path:
    """A recording of kdp's own plugin."""
    async with recording(kubelet, tmp_path) as at, PluginManager([Widgets()], ManagerOptions(paths=at.paths)):
        await a_day(kubelet)
    return at.file


@pytest.fixture
async def bares(kubelet: SimulatedKubelet, tmp_path: Path) -> Path:
    """A recording of a program that is not kdp's, killed and started again in the middle."""
    async with recording(kubelet, tmp_path) as at:
        for _ in range(2):
            async with of_command(BARE)(at.paths, lambda: None) as plugin:
                await a_day(kubelet)
                assert await plugin.stop() is None
            await kubelet.until(allocatable={RESOURCE: 0})
            for uid in [*kubelet.pods]:
                await kubelet.delete(uid)
    return at.file


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write the recording again with every line changed."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        change(line)
    other = file.with_name("changed.jsonl")
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return other


async def test_a_backend_answers_as_its_recording(kdps: Path) -> None:
    report = await replay(kdps, Widgets)

    assert report.is_same
    assert [step.what.split()[0] for step in report.steps].count("Allocate") == 2
    assert [step.what.split()[0] for step in report.steps].count("Register") == 2


async def test_a_program_answers_as_its_recording(bares: Path) -> None:
    report = await Replay(read(bares), of_command(BARE)).run()

    assert report.is_same, report.story()
    assert [step.what.split()[0] for step in report.steps].count("Register") == 4
    assert [step.what for step in report.steps].count("stop") == 2, "it was stopped where the recorded one went away"


@pytest.mark.slow
async def test_a_changed_program_is_found_out(bares: Path) -> None:
    report = await Replay(read(bares), of_command([*BARE, "red"])).run()

    different = [step for step in report.steps if step.verdict == "different"]
    assert len(different) == 4
    assert {re.sub(r"w\d", "w", step.differences[0]) for step in different} == {
        "env WIDGET_w: recorded 'blue', now 'red'"
    }


async def test_the_minimal_example_answers_as_recorded(
    kubelet: SimulatedKubelet, tmp_path: Path, sysfs_tree: SysfsTree
) -> None:
    sysfs_tree.char_device("/dev/fuse")
    async with (
        recording(kubelet, tmp_path, redact=["paths"]) as at,
        PluginManager([Fuse(count=3)], ManagerOptions(paths=at.paths, host=sysfs_tree.host)),
    ):
        await kubelet.until(allocatable={"example.com/fuse": 3})
        await kubelet.admit(Pod.asking({"example.com/fuse": 2}))

    assert (await replay(at.file, lambda: Fuse(count=3), host=sysfs_tree.host)).is_same
    with pytest.raises(ReplayDiffers, match="devices that were not recorded: fuse-3"):
        await replay(at.file, lambda: Fuse(count=4), host=sysfs_tree.host)
    sysfs_tree.remove("/dev/fuse")
    with pytest.raises(ReplayDiffers, match="recorded Healthy, now Unhealthy"):
        await replay(at.file, lambda: Fuse(count=3), host=sysfs_tree.host)


class Prepared(Widgets):
    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        pass


class Refusing(Widgets):
    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        raise kdp.AllocationError("not today")


class Elsewhere(Widgets):
    resource = "example.com/gadget"


@pytest.mark.parametrize(
    ("make", "what", "difference"),
    [
        (lambda: Widgets(count=3), "ListAndWatch", "devices that were not recorded: w2"),
        (Prepared, "Register", "options.pre_start_required: recorded False, now True"),
        (Refusing, "Allocate", "recorded an answer, now the error FAILED_PRECONDITION: .*not today"),
        (Elsewhere, "Register", "did not register within 1 s; it registers example.com/gadget instead"),
    ],
)
async def test_every_kind_of_change_is_found(
    kdps: Path, make: Callable[[], kdp.DeviceBackend], what: str, difference: str
) -> None:
    with pytest.raises(ReplayDiffers) as refused:
        await replay(kdps, make, deadline=1.0 if make is Elsewhere else 10.0)

    found = [text for step in refused.value.report.steps if step.what.startswith(what) for text in step.differences]
    assert any(re.search(difference, text) for text in found), str(refused.value)
    assert re.search(difference, str(refused.value)), "the error's text has it, too"


async def test_an_error_must_come_again_with_its_text(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    async with recording(kubelet, tmp_path) as at, PluginManager([Refusing()], ManagerOptions(paths=at.paths)):
        await kubelet.until(allocatable={RESOURCE: 2})
        with pytest.raises(Exception, match="not today"):
            await kubelet.admit(Pod.asking({RESOURCE: 1}))

    assert (await replay(at.file, Refusing)).is_same
    with pytest.raises(ReplayDiffers, match=r"recorded the error FAILED_PRECONDITION: .*, now it is answered"):
        await replay(at.file, Widgets)


async def test_what_was_left_out_must_be_the_same_wherever_it_was_the_same(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    async with (
        recording(kubelet, tmp_path, redact=["env"]) as at,
        PluginManager([Widgets()], ManagerOptions(paths=at.paths)),
    ):
        await a_day(kubelet)

    class Fickle(Widgets):
        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            return kdp.ContainerEdits(env={f"WIDGET_{d.id}": f"of {d.id}" for d in devices})

    assert (await replay(at.file, lambda: Widgets(color="any other"))).is_same
    with pytest.raises(ReplayDiffers, match=r"env WIDGET_w\d: recorded 'redacted-env-1', now 'of w\d'"):
        await replay(at.file, Fickle)


async def faulty(kubelet: SimulatedKubelet, directory: Path) -> Path:
    """A recording in which a device breaks."""
    widgets = Widgets()
    async with recording(kubelet, directory) as at, PluginManager([widgets], ManagerOptions(paths=at.paths)):
        await kubelet.until(allocatable={RESOURCE: 2})
        _break(widgets, "w1")
        await kubelet.until(allocatable={RESOURCE: 1})
    return at.file


def _break(widgets: Widgets, name: str) -> None:
    widgets.faulty.add(name)
    assert widgets.reporter is not None
    widgets.reporter.rescan()


async def test_a_test_can_change_the_hardware_as_the_recording_says(kubelet: SimulatedKubelet, tmp_path: Path) -> None:
    file = await faulty(kubelet, tmp_path)
    widgets = Widgets()
    expected: list[tuple[str, list[str]]] = []

    def on_list(resource: str, devices: Sequence[ListedDevice]) -> None:
        expected.append((resource, [device.health for device in devices]))
        _break(widgets, "w1")

    assert (await replay(file, lambda: widgets, on_list=on_list)).is_same
    assert expected == [(RESOURCE, ["Healthy", "Unhealthy"])]


async def test_a_list_that_does_not_come_is_a_difference_unless_only_first_ones_count(
    kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    file = await faulty(kubelet, tmp_path)

    assert (await replay(file, Widgets, lists="first")).is_same
    with pytest.raises(ReplayDiffers, match="device w1: recorded Unhealthy on NUMA 0, now Healthy on NUMA 0"):
        await replay(file, Widgets, deadline=0.5)


async def test_a_register_that_no_kubelet_answered_is_not_expected(kdps: Path) -> None:
    lines = text_of(kdps).splitlines()
    vain = [
        {"t": 0.9, "what": "call", "call": 99, "from": "plugin", "method": "Register", "registration": 99}
        | {"resource": RESOURCE, "message": {"version": "v1beta1", "endpoint": "x", "resource_name": RESOURCE}},
        {"t": 0.9, "what": "end", "call": 99, "from": "kubelet", "code": "UNAVAILABLE", "detail": "gone"},
    ]
    put(kdps, "\n".join([*lines[:-1], *map(json.dumps, vain), lines[-1], ""]))

    assert (await replay(kdps, Widgets, deadline=1.0)).is_same


async def test_the_order_of_devices_and_the_socket_names_are_free(kdps: Path) -> None:
    def reverse(line: dict[str, Any]) -> None:
        message = line.get("message", {})
        if "devices" in message:
            message["devices"].reverse()
        if "endpoint" in message:
            message["endpoint"] = "another.sock"

    assert (await replay(changed(kdps, reverse), Widgets)).is_same


async def test_a_cut_recording_is_refused_and_can_be_played_in_part(kdps: Path) -> None:
    text = text_of(kdps)
    put(kdps, text[: text.index('"method": "Allocate"') + 40])

    with pytest.raises(RecordingError, match=r"is cut off after line \d+, \d.\d s .*--partial"):
        await replay(kdps, Widgets)
    report = await Replay(read(kdps, partial=True), of_command([sys.executable, "-c", ""])).run()
    assert "ended with exit code 0 although nobody asked it to" in report.problem


async def test_it_can_be_cancelled_and_leaves_nothing(kdps: Path, tmp_path: Path) -> None:
    lock = tmp_path / "pid"
    program = ["/bin/sh", "-c", f"echo $$ > {lock}; exec sleep 1000"]
    with anyio.move_on_after(0.5) as scope:
        await Replay(read(kdps), of_command(program)).run()

    assert scope.cancelled_caught
    assert not exists(f"/proc/{text_of(lock).strip()}")
