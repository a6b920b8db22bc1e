"""Claims live random lives on a node that fails, restarts and reboots; every invariant holds.

1. No device is given to two claims.
2. What the kubelet is told is what is allocated, and the CDI spec on the disk has it.
3. The same allocation has the same answer.
4. The backend is not asked again for what is prepared.
5. Of what was unprepared nothing is left, unless its release is owed; then no container can get it any more.
6. A claim that exists is not undone unasked.
7. What is prepared is given by the hardware.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

import kdp
from kdp.cdi import CdiDirectory, parse_spec
from kdp.concurrency.observable import Observable
from kdp.dra.claims import prepare
from kdp.dra.claims.prepare import Preparer
from kdp.dra.options import DriverOptions
from kdp.hardware import Host
from kdp.kubelet import KubeletPaths
from kdp.supervision.given import Given
from kdp.supervision.publisher import Discovery
from kdp.supervision.supervisor import Deadlines

from ...mutants import holds, live
from .claim_objects import DRIVER, POOL, claim, result
from .claims_world import Claims

DEVICES = ("w0", "w1", "w2")
NUMBERS = st.integers(0, 2)
ALLOCATIONS = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=2, unique=True)


class Hardware(kdp.DeviceBackend):
    """Remembers what is given, by claim and device; fails for one request if it is told to."""

    resource = "example.com/widget"

    def __init__(self) -> None:
        self.given: set[tuple[str, str]] = set()
        self.asked = 0
        self.fails: str | None = None

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id=each, edits=kdp.ContainerEdits(env={each.upper(): "1"})) for each in DEVICES]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        assert devices.claim is not None
        self._fail(devices)
        self.asked += 1
        self.given |= {(devices.claim.uid, each) for each in devices.ids}
        return kdp.ContainerEdits.merge((device.id, device.edits) for device in devices)

    @override
    def released(self, devices: kdp.Allocation) -> None:
        assert devices.claim is not None
        self._fail(devices)
        self.given -= {(devices.claim.uid, each) for each in devices.ids}

    def _fail(self, devices: kdp.Allocation) -> None:
        if devices.request == self.fails:
            raise kdp.AllocationError("it fails")


class Supervisor:
    """As much of a supervisor as claims need, without threads."""

    def __init__(self, backend: Hardware) -> None:
        self.backend = backend
        self.label = "Hardware"
        self.deadlines = Deadlines()
        self.discovery = Observable(Discovery(devices=tuple(backend.discover()), problem=None))
        self.shared_nodes = frozenset[str]()
        self.devices = tuple(backend.discover())
        self.node_things: dict[str, tuple[str, ...]] = {}
        self.hooks = SimpleNamespace(
            overridden=lambda _: True,
            forget=lambda *_: None,
            is_running=lambda *_: False,
            is_done=lambda *_: False,
            note_done=lambda *_: None,
        )  # nothing ever runs on

    def judge_again(self) -> None:
        """The devices are always healthy."""

    async def call(self, hook: str, *args: Any, deadline: float, then: Any = None, **_: Any) -> Any:
        found = getattr(self.backend, hook)(*args)
        return then(found) if then else found


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="kdp-", dir=base))
        self.runner = asyncio.Runner()
        self.hardware = Hardware()
        self.api = Claims()
        self.cdi = CdiDirectory(self.folder / "cdi")
        self.boots = 0
        self.preparer: Any = None
        self.prepared: dict[int, list[str]] = {}
        self.answers: dict[tuple[int, tuple[str, ...]], Any] = {}
        self.start()
        self.allocate(0, ["w0", "w1"])
        self.allocate(1, ["w2"])

    @override
    def teardown(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        api: Any = self.api
        supervisor: Any = Supervisor(self.hardware)
        options = DriverOptions(
            api=api,
            node=POOL,
            paths=KubeletPaths.under(plugins_dir=self.folder),
            cdi=self.cdi.path,
            boot_id=f"boot-{self.boots}",
        )
        if self.preparer is not None:
            self.runner.run(self.preparer.close(0))
        self.preparer = Preparer(DRIVER, supervisor=supervisor, host=Host(), options=options)
        self.runner.run(self.preparer.recover())

    def allocated(self, number: int) -> list[str] | None:
        item = self.api.items.get(("default", claim(number).name))
        return None if item is None else [each["device"] for each in item["status"]["allocation"]["devices"]["results"]]

    def of(self, number: int) -> set[str]:
        return {device for uid, device in self.hardware.given if uid == claim(number).uid}

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(number=NUMBERS, devices=ALLOCATIONS)
    def allocate(self, number: int, devices: list[str]) -> None:
        self.api.put(claim(number), [result(each, request) for each, request in zip(devices, "ab", strict=False)])

    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        self.api.items.pop(("default", claim(number).name), None)

    @rule(number=NUMBERS, request=st.sampled_from(["a", "b"]), call=st.sampled_from(["prepare", "unprepare"]))
    def fail(self, number: int, request: str, call: str) -> None:
        self.prepare(number)
        self.hardware.fails = request
        getattr(self, call)(number)
        self.hardware.fails = None
        self.prepare(number)

    @rule()
    def restart(self) -> None:
        self.start()

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        self.hardware.given.clear()
        self.prepared.clear()
        shutil.rmtree(self.cdi.path, ignore_errors=True)
        self.start()

    @rule()
    def wipe_specs(self) -> None:
        shutil.rmtree(self.cdi.path, ignore_errors=True)

    @rule(number=NUMBERS)
    def prepare(self, number: int) -> None:
        before, allocated = self.hardware.asked, self.allocated(number)
        [outcome] = self.runner.run(self.preparer.prepare([claim(number)])).values()
        assert "internal error" not in outcome.error, "as of a supervisor that lacks what a Prepare needs"
        if outcome.error:
            if allocated != self.prepared.get(number):
                self.prepared.pop(number, None)
            return
        devices = [device.name for device in outcome.devices]
        holds(2, devices == allocated, f"{devices} is told, {allocated} is allocated")
        if self.prepared.get(number) == allocated:
            holds(4, self.hardware.asked == before, "the backend was asked again")
        file = self.cdi.file(f"{DRIVER}/claim", claim(number).uid)
        holds(2, file.exists(), "the spec is missing")
        spec = parse_spec(file.read_bytes(), where="the spec")
        there = {f"{spec.kind}={device.name}" for device in spec.devices}
        holds(2, there == {each for device in outcome.devices for each in device.cdi_ids}, "the spec has other names")
        answer = tuple(
            attrs.evolve(device, given=Given()) for device in outcome.devices
        )  # the kubelet is not told that
        same = self.answers.setdefault((number, tuple(devices)), answer)
        holds(3, same == answer, "the answer is another one")
        holds(7, self.of(number) == set(devices), f"the hardware gives {self.of(number)} and not {devices}")
        self.prepared[number] = devices
        taken = [device for _, device in self.hardware.given]
        holds(1, len(taken) == len(set(taken)), f"given are {self.hardware.given}")

    @rule(number=NUMBERS)
    def unprepare(self, number: int) -> None:
        [outcome] = self.runner.run(self.preparer.unprepare([claim(number)])).values()
        assert "internal error" not in outcome.error
        self.prepared.pop(number, None)
        assert not outcome.error, "the disk works"
        record = self.preparer.store.read(claim(number).uid)
        if record is None:
            self.nothing_is_left(number)
        else:
            holds(5, record.is_over, "the claim looks prepared")
            holds(5, not self.cdi.file(f"{DRIVER}/claim", claim(number).uid).exists(), "its spec is left")

    def nothing_is_left(self, number: int) -> None:
        holds(5, not self.of(number), "the hardware still gives something")
        files = [path for path in self.folder.rglob("*") if claim(number).uid in path.name]
        holds(5, not files, f"left are {files}")

    @rule()
    def collect(self) -> None:
        kept = {number: self.of(number) for number in range(3) if self.allocated(number) is not None}
        for uid in self.runner.run(self.preparer.collect(grace=0.0)):
            [number] = [number for number in range(3) if claim(number).uid == uid]
            holds(6, number not in kept, "it was undone although it exists")
            self.prepared.pop(number, None)
            self.nothing_is_left(number)
        for number in range(3):
            if number not in kept:
                self.prepared.pop(number, None)


def test_every_life_keeps_the_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PREPARE_SECONDS", 0.05)
    live(Node, examples=60, steps=20)
