"""Backends of every build can be judged: the kit wraps what the vendor wrote, however he wrote it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from pathlib import Path

import anyio
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp_testkit.conformance import Levers, check_backend

from .twice import judged

TOUCHED = [4, 6, 7, 8, 9, 11, 38, 42, 43, 44, 48, 49, 50, 51, 52, 53, 54, 55, 56, 58, 64]
"""The checks for which the kit reaches into the backend."""


class Plain(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval: float | None = None

    @override
    def discover(self) -> Iterable[kdp.Device] | Awaitable[Iterable[kdp.Device]]:
        return kdp.Device.counted("w", 3)


class Asynchronous(Plain):
    """Everything ``async def``, and every hook its own."""

    @override
    async def discover(self) -> list[kdp.Device]:
        return kdp.Device.counted("w", 3)

    @override
    async def watch(self, report: kdp.Reporter) -> None:
        await anyio.sleep_forever()

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    @override
    async def prefer(self, request: kdp.PreferRequest) -> Sequence[str]:
        must = [device.id for device in request.must_include]
        return [*must, *(d.id for d in request.available if d.id not in must)][: request.size]

    @override
    async def prepare_container(self, devices: kdp.Allocation) -> None:
        pass


class Blocking(Plain):
    """Everything ``def``, with a generator and a watch that blocks."""

    @override
    def discover(self) -> Iterator[kdp.Device]:
        for number in range(3):
            yield kdp.Device(id=f"w-{number}", unit="card", numa_nodes=(0,))

    @override
    def watch(self, report: kdp.Reporter) -> None:
        report.stopping.wait()

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return kdp.ContainerEdits(env={"WIDGETS": ",".join(devices.ids)})

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        pass


@attrs.define(eq=False)
class Slotted(kdp.DeviceBackend):
    """An attrs class with slots, whose devices name their resources."""

    count: int = 3

    @override
    def discover(self) -> list[kdp.Device]:
        return [
            *(kdp.Device(id=f"a-{i}", resource="example.com/a") for i in range(self.count)),
            kdp.Device(id="b-0", resource="example.com/b"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Plain, Asynchronous, Blocking, Slotted])
async def test_a_backend_is_judged_in_full(backend: type[kdp.DeviceBackend]) -> None:
    report = await check_backend(backend, only=TOUCHED)
    report.raise_if_failed()
    assert report.summary == {"passed": len(TOUCHED), "failed": 0, "not_applicable": 0}


class Unwilling(Plain):
    """Hooks that an object does not use, and that show if they are called all the same."""

    def __init__(self) -> None:
        self.unused_hooks = ("allocate", "prepare_container", "released")

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        raise AssertionError("allocate() is not used")

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        raise AssertionError("prepare_container() is not used")

    @override
    def released(self, devices: kdp.Allocation) -> None:
        raise AssertionError("released() is not used")


@pytest.mark.slow
async def test_hooks_that_an_object_does_not_use_are_not_called_by_the_kits_own_either() -> None:
    report, _ = await judged(lambda failed: check_backend(Unwilling, only=failed or [38, 49, 51, 70]))
    report.raise_if_failed()


class Files(Plain):
    """Devices that are files: what the vendor's levers change is what it finds."""

    poll_interval = 0.05

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @override
    def discover(self) -> list[kdp.Device]:
        return [
            kdp.Device(id=path.name, health=kdp.Health.healthy() if path.stat().st_size else kdp.Health.unhealthy("no"))
            for path in sorted(self.directory.iterdir())
        ]


async def test_a_vendors_own_levers_judge_his_detection(tmp_path: Path) -> None:
    for name in ("w0", "w1"):
        (tmp_path / name).write_text("ok")

    async def add(device: str) -> None:
        (tmp_path / (device or "new")).write_text("ok")

    levers = Levers(
        fail=lambda device: (tmp_path / device).write_text(""),
        heal=lambda device: (tmp_path / device).write_text("ok"),
        vanish=lambda device: (tmp_path / device).unlink(),
        add=add,
    )
    report = await check_backend(lambda: Files(tmp_path), levers=levers, only=[6, 7, 9, 10, 11, 12, 38])
    report.raise_if_failed()
    assert report.summary["passed"] == 7


async def test_a_lever_that_is_missing_is_not_replaced_by_the_kits(tmp_path: Path) -> None:
    (tmp_path / "w0").write_text("ok")
    levers = Levers(fail=lambda device: (tmp_path / device).write_text(""))
    report = await check_backend(lambda: Files(tmp_path), levers=levers, only=[4, 9])
    [result] = report.of("not_applicable")
    assert (result.check.id, "'vanish' was not given" in result.saw) == (9, True)


async def test_a_backend_that_never_registers_is_told_once() -> None:
    class NotReady(Plain):
        @override
        def open(self) -> None:
            raise kdp.NotReady("the widget driver is not loaded")

    from kdp_testkit.conformance import run_checks
    from kdp_testkit.conformance.deviceplugin.backend import BackendSubject

    report = await run_checks(BackendSubject(NotReady), only=[33, 34], meeting=0.5)
    assert dict(report.summary) == {"passed": 0, "failed": 1, "not_applicable": 1}
    assert "the widget driver is not loaded" in report.results[0].saw
    assert "see check 33" in report.results[1].saw


async def test_without_a_device_there_is_nothing_to_allocate() -> None:
    class Empty(Plain):
        @override
        def discover(self) -> list[kdp.Device]:
            return []

    report = await check_backend(Empty, only=[1, 4, 33, 34])
    report.raise_if_failed()
    assert [result.check.id for result in report.of("not_applicable")] == [33, 34]


async def test_nothing_is_left_in_the_process() -> None:
    before = list(logging.getLogger("kdp").handlers)
    (await check_backend(Plain, only=[4, 23])).raise_if_failed()
    assert logging.getLogger("kdp").handlers == before
    (await check_backend(Plain, only=[17])).raise_if_failed()
