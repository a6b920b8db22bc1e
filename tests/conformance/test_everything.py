"""One class that uses every feature at once is judged in both modes: a check must not trip over any of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp_testkit.conformance import Levers, check_backend
from kdp_testkit.conformance.dra.backend import DraBackendSubject
from kdp_testkit.conformance.dra.runner import run_dra_checks

from .twice import judged

CARDS, SLOTS, FANS = "example.com/card", "example.com/card-slot", "example.com/fan"


@attrs.frozen
class CardConfig:
    """What a claim may ask of a card."""

    power_limit: int = 300


class Everything(kdp.DeviceBackend):
    """Cards with slots and a fan that claims share: all attributes of a device and of a class, and all hooks.

    Args:
        sick: A file for each card that has failed.
        gone: A file for each part that was pulled out, and one ``new*`` for each card that was put in.
    """

    resource = CARDS
    resources = (SLOTS, FANS)
    poll_interval = 0.05
    joined_env: Mapping[str, str] = {"NAMES": ",", "ALL": ","}
    policy = "linked"
    config = CardConfig
    measurements = (kdp.Measurement("temperature", unit="celsius", help="Of the card."),)

    def __init__(self, sick: Path, gone: Path) -> None:
        self.sick = sick
        self.gone = gone
        self.opened = threading.Event()

    @override
    async def open(self) -> None:
        self.opened.set()

    @override
    def close(self) -> None:
        self.opened.clear()

    def cards(self) -> list[str]:
        known = ("c0", "c1", "c2", *(path.name for path in self.gone.glob("new*")))
        return [name for name in known if not (self.gone / name).exists() or name.startswith("new")]

    @override
    def discover(self) -> list[kdp.Device]:
        assert self.opened.is_set()
        devices: list[kdp.Device] = []
        if not (self.gone / "fan").exists():
            fan = kdp.Device(id="fan", resource=FANS, shareable=True, capacity={"rpm": 100}, edits=_named("fan"))
            devices.append(fan)
        for number, card in enumerate(self.cards()):
            is_sick = (self.sick / card).exists()
            health = kdp.Health.unhealthy("overheated") if is_sick else kdp.Health.healthy()
            common: dict[str, Any] = {
                "health": health,
                "unit": card,
                "numa_nodes": (number % 2,),
                "identity": f"serial-{card}",
            }
            devices.append(
                kdp.Device(
                    id=card,
                    attributes={"model": "x1", "slots": 2, "firmware": kdp.Version("1.2.3")},
                    capacity={"memory": kdp.Quantity("16Gi")},
                    edits=_named(card),
                    handle=object(),
                    consumes={card: {"slots": 2}},
                    **common,
                )
            )
            devices += [
                kdp.Device(
                    id=f"{card}-s{slot}",
                    resource=SLOTS,
                    attributes={"model": "x1-slot"},
                    capacity={"memory": kdp.Quantity("8Gi")},
                    edits=_named(f"{card}-s{slot}"),
                    consumes={card: {"slots": 1}},
                    exists=slot < 2,
                    **common,
                )
                for slot in range(3)
            ]
        return devices

    @override
    def watch(self, report: kdp.Reporter) -> None:
        report.stopping.wait()

    @override
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return {card: {"slots": 2} for card in self.cards()}

    @override
    async def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        return devices.edits().adding(env={"ALL": ",".join(devices.ids)})

    @override
    def prefer(self, request: kdp.PreferRequest) -> None:
        return None  # the policy chooses

    @override
    def links(self, devices: Sequence[kdp.Device]) -> Mapping[tuple[str, str], float]:
        return {("c0", "c1"): 2.0, ("c1", "c2"): 1.0}

    @override
    def prepare_container(self, devices: kdp.Allocation) -> None:
        devices.state["prepared"] = True

    @override
    async def released(self, devices: kdp.Allocation) -> None:
        assert devices.ids

    @override
    def measure(self) -> Mapping[str, Mapping[str, float]]:
        return {card: {"temperature": 40.0} for card in self.cards()}

    @override
    def labels(self, devices: Sequence[kdp.Device]) -> Mapping[str, str]:
        return {"model": "x1", "cards": str(len(self.cards()))}

    @override
    def needs(self) -> kdp.Needs:
        return kdp.Needs(host_paths=[self.sick, self.gone])


def _named(name: str) -> kdp.ContainerEdits:
    return kdp.ContainerEdits(env={"NAMES": name})


class Rack:
    """The hardware of one test, and the levers of it; a lever of a slot moves the whole card."""

    def __init__(self, folder: Path) -> None:
        self.sick, self.gone = folder / "sick", folder / "gone"
        self.sick.mkdir()
        self.gone.mkdir()
        self.moved: list[tuple[str, str]] = []
        self.levers = Levers(fail=self.fail, heal=self.heal, vanish=self.vanish, add=self.add)

    def make(self) -> Everything:
        return Everything(self.sick, self.gone)

    def fail(self, device: str, resource: str) -> None:
        self.moved.append(("fail", resource))
        (self.sick / device.partition("-")[0]).touch()

    async def heal(self, device: str) -> None:
        (self.sick / device.partition("-")[0]).unlink(missing_ok=True)

    def vanish(self, device: str) -> None:
        (self.gone / device.partition("-")[0]).touch()

    def add(self, device: str) -> None:
        if device:
            (self.gone / device.partition("-")[0]).unlink(missing_ok=True)
        else:
            (self.gone / "new0").touch()

    def left(self) -> list[str]:
        files = [path.name for folder in (self.sick, self.gone) for path in folder.iterdir()]
        return [name for name in files if name != "new0"]


@pytest.mark.slow
@pytest.mark.parametrize("resource", [CARDS, SLOTS])
@pytest.mark.parametrize("has_levers", [False, True])
async def test_a_class_that_uses_everything_is_a_good_device_plugin(
    tmp_path: Path, resource: str, has_levers: bool
) -> None:
    rack = Rack(tmp_path)
    report, _ = await judged(
        lambda failed: check_backend(
            rack.make,
            resource=resource,
            levers=rack.levers if has_levers else None,
            quick=True,
            only=failed,
            cdi_dirs=[tmp_path],
        )
    )
    report.raise_if_failed()
    assert set(rack.moved) == ({("fail", resource)} if has_levers else set())
    assert not rack.left()


@pytest.mark.slow
@pytest.mark.parametrize("has_levers", [False, True])
async def test_a_class_that_uses_everything_is_a_good_dra_driver(tmp_path: Path, has_levers: bool) -> None:
    rack = Rack(tmp_path)
    report, _ = await judged(
        lambda failed: run_dra_checks(
            DraBackendSubject(rack.make, levers=rack.levers if has_levers else None), quick=True, only=failed
        )
    )
    report.raise_if_failed()
    assert not rack.left()


async def test_two_devices_of_one_unit_failed_together_and_checks_6_and_8_failed(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    report, _ = await judged(
        lambda failed: check_backend(
            rack.make, resource=SLOTS, levers=rack.levers, only=failed or [6, 8, 9], cdi_dirs=[tmp_path]
        )
    )
    report.raise_if_failed()
    assert report.summary["passed"] == 3
    assert "with it c0-s1, 4 other devices unchanged" in report.results[0].saw
    assert not rack.left()


async def test_the_kits_copies_of_a_device_took_the_counters_of_its_card_and_check_72_failed(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    report = await check_backend(rack.make, resource=CARDS, only=[72], cdi_dirs=[tmp_path])
    report.raise_if_failed()
