from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import anyio
import pytest
from tests.unit.dra.claims.claim_objects import claim, result
from tests.unit.dra.claims.claims_world import Widgets
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp.dra import health, plugin
from kdp.dra.claims import hooks
from kdp.dra.driver import DraDriver
from kdp.dra.options import DriverOptions
from kdp.dra.publishing import feed
from kdp.dra.publishing.actions import PublisherStatus
from kdp.dra.render import health_key
from kdp.dra.sockets import DriverSockets
from kdp.errors import ConfigurationError
from kdp.model.claims import TaintEffect
from kdp_testkit.patience import PATIENCE

from .helpers import DRIVER, heard, running

HEALTHY, UNHEALTHY = 1, 2


# -- registration ------------------------------------------------------------------------------------------------------


async def test_the_plugin_watcher_finds_what_it_looks_for(folder: Path) -> None:
    async with running(folder, Widgets()) as driver:
        started = time.monotonic()
        info = await driver.info()
        assert time.monotonic() - started < PATIENCE
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(driver.service))
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert not driver.driver.is_ready
        await driver.notify("no overlap")
        assert driver.driver.status().drivers[DRIVER].reason == "the kubelet did not register the driver: no overlap"
        assert (await driver.prepare()).claims == {}, "it goes on serving"
        await driver.notify()
        await until(lambda: driver.driver.is_ready)
        assert os.stat(driver.service).st_mode & 0o777 == 0o600
    assert driver.sockets() == []
    assert not [*driver.paths.plugins_dir.rglob("*.sock")]


async def test_without_health_none_is_announced_and_the_stream_is_silent(folder: Path) -> None:
    async with running(folder, Widgets(), health=False) as driver:
        assert list((await driver.info()).supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        async with driver.health("v1alpha1") as stream:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.read(), 0.3)


async def test_dead_sockets_go_and_live_ones_of_others_are_respected(folder: Path) -> None:
    registry, data = folder / "plugins_registry", folder / "plugins" / DRIVER
    registry.mkdir()
    data.mkdir(parents=True)
    names = [f"{DRIVER}-reg.sock", f"{DRIVER}-{'A' * 11}-reg.sock", f"{DRIVER}-01234567-reg.sock"]
    for path in (
        *(registry / name for name in names),
        registry / f".{names[-1]}",
        data / "dra.sock",
        data / ".dra-01234567.sock",
    ):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with running(folder, Widgets(), wait=False) as driver:
        await until(lambda: len(driver.sockets()) == 1 and driver.sockets()[0] not in names)
        assert [*registry.iterdir()] == [driver.registration]
        assert [*data.glob("[!.]*.sock"), *data.glob(".*.sock")] == [driver.service]
        assert (await driver.info()).name == DRIVER
        async with running(folder, Widgets(), wait=False) as second:
            await until(lambda: "another process answers at" in (second.driver.status().drivers[DRIVER].reason or ""))
        assert (await driver.info()).name == DRIVER, "the first one was not disturbed"


async def test_a_missing_registry_is_said_and_waited_for(folder: Path) -> None:
    async with running(folder, Widgets(), wait=False) as driver:
        driver.paths.plugins_registry_dir.rmdir()
        await until(
            lambda: (
                driver.driver.status().drivers[DRIVER].reason
                == f"the plugin watcher's directory {driver.paths.plugins_registry_dir} is missing; mount the node's "
                "at the same path"
            )
        )
        driver.paths.plugins_registry_dir.mkdir()
        await until(driver.sockets)


async def test_a_socket_that_is_removed_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "LOOK_PAUSE", 0.02)
    async with running(folder, Widgets()) as driver:
        await driver.notify()
        before = driver.registration
        before.unlink()
        await until(driver.sockets)
        assert driver.registration == before
        assert (await driver.info()).name == DRIVER
        assert not driver.driver.is_ready


async def test_two_pods_overlap_in_an_update(folder: Path) -> None:
    one, other = (f"0000000{n}-0000-4000-8000-000000000000" for n in range(2))
    names = claim()
    async with running(folder, Widgets(), pod_uid=one) as old:
        [one_alone] = old.sockets()
        async with running(folder, Widgets(), pod_uid=other, wait=False) as new:
            await until(lambda: len(new.sockets()) == 2)
            found = [await old.info(old.paths.plugins_registry_dir / name) for name in old.sockets()]
            endpoints = [Path(each.endpoint) for each in found]
            answers = []
            for driver, endpoint in zip((old, new), endpoints, strict=True):
                driver.endpoint = endpoint
                driver.api.put(names, [result("w0")])
                answers.append(await driver.prepare(names))
            assert answers[0] == answers[1], "each sees what the other has done"
        assert new.sockets() == [one_alone], "the old one is there as before"


async def test_what_is_left_of_a_process_that_was_killed_in_an_update_stayed_registered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "LOOK_PAUSE", 0.02)
    other = "00000001-0000-4000-8000-000000000000"
    async with running(folder, Widgets(), pod_uid="00000000-0000-4000-8000-000000000000") as driver:
        registry, data = driver.paths.plugins_registry_dir, driver.paths.plugins_dir / DRIVER
        left = DriverSockets.of(DRIVER, registry=registry, data=data, pod_uid=other)
        for path in (left.registration, left.service):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        await until(lambda: not (os.path.lexists(left.registration) or os.path.lexists(left.service)))
        assert (await driver.info()).name == DRIVER


# -- claims ------------------------------------------------------------------------------------------------------------


async def test_both_versions_prepare_and_unprepare(folder: Path) -> None:
    async with running(folder, Widgets()) as driver:
        driver.api.put(claim(0), [result("w0", "gpu/large", share="s0")])
        driver.api.put(claim(1), None)
        answer = await driver.prepare(claim(0), claim(1))
        assert set(answer.claims) == {claim(0).uid, claim(1).uid}
        [device] = answer.claims[claim(0).uid].devices
        assert (list(device.request_names), device.pool_name, device.device_name, device.share_id) == (
            ["gpu"],
            "node0",
            "w0",
            "s0",
        )
        assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={claim(0).uid}:gpu.large:w0:s0"]
        assert "is not allocated" in answer.claims[claim(1).uid].error
        older = await driver.prepare(claim(0), version="v1beta1")
        [device] = older.claims[claim(0).uid].devices
        assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={claim(0).uid}:gpu.large:w0:s0"]
        assert await driver.unprepare(claim(0), claim(1), claim(7), version="v1beta1") == {
            claim(0).uid: "",
            claim(1).uid: "",
            claim(7).uid: "",
        }
        assert list(driver.cdi.iterdir()) == []


async def test_the_stop_answers_what_is_in_flight(folder: Path) -> None:
    backend = Widgets()
    async with running(folder, backend) as driver:
        driver.api.put(claim(), [result("w0")])
        backend.gate.clear()
        call = asyncio.create_task(driver.prepare(claim()))
        await until(lambda: backend.calls)
        started = time.monotonic()
    assert time.monotonic() - started < PATIENCE
    assert (await call).claims[claim().uid].error == "the driver is stopping; the kubelet asks again"
    backend.gate.set()
    async with running(folder, backend) as driver:
        driver.api.put(claim(), [result("w0")])
        assert (await driver.prepare(claim())).claims[claim().uid].error == ""


async def test_a_backend_is_told_which_claims_have_its_devices(folder: Path) -> None:
    backend = Widgets()
    async with running(folder, backend) as driver:
        assert backend.holdings() == {}
        for number in (0, 1):
            driver.api.put(claim(number), [result(f"w{number}")])
            await driver.prepare(claim(number))
        name = f"{claim(0).namespace}/{claim(0).name}"
        assert backend.holdings()["w0"] == (name,)
        await driver.unprepare(claim(1))
        await until(lambda: backend.holdings() == {"w0": (name,)})


# -- devices and their health ------------------------------------------------------------------------------------------


def sick(backend: Widgets, reason: str | None) -> None:
    state = kdp.Health.healthy() if reason is None else kdp.Health.unhealthy(reason)
    backend.devices = [kdp.Device(id="w0", health=state), kdp.Device(id="w1")]


async def test_health_is_told_at_once_on_change(folder: Path) -> None:
    backend = Widgets("w0", "w1")
    async with running(folder, backend) as driver, driver.health() as one, driver.health("v1alpha1") as other:
        well = {"w0": (HEALTHY, ""), "w1": (HEALTHY, "")}
        assert await heard(one) == await heard(other) == well
        sick(backend, "Ü" * 1000)
        driver.driver.rescan()
        for stream in (one, other):
            state, message = (await heard(stream))["w0"]
            assert (state, message) == (UNHEALTHY, "Ü" * 510 + "..."), "at most 1024 bytes"


async def test_health_that_nobody_knows_is_not_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT", 1)

    class Silent(Widgets):
        is_silent = False
        stale_after = 0.0

        @override
        def discover(self) -> list[kdp.Device]:
            if self.is_silent:
                raise OSError("the bus does not answer")
            return list(super().discover())

    backend = Silent("w0")
    async with running(folder, backend) as driver, driver.health() as stream:
        assert await heard(stream) == {"w0": (HEALTHY, "")}
        backend.is_silent = True
        driver.driver.rescan()
        told = asyncio.create_task(stream.read())
        with anyio.fail_after(PATIENCE):
            while (await asyncio.wait([told], timeout=3 * health.TIMEOUT))[0]:  # else it has fallen silent
                told = asyncio.create_task(stream.read())
        backend.is_silent = False
        driver.driver.rescan()
        message = await told
        assert b"w0" in message


async def test_what_allocate_knows_of_a_network_is_not_handed_to_released(folder: Path) -> None:
    class Cards(Widgets):
        found: list[dict[str, kdp.NetworkData]]

        @override
        def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
            devices.network["w0"] = kdp.NetworkData(interface_name="eth1")
            return kdp.ContainerEdits(env={"CARD": "w0"})

        @override
        def released(self, devices: kdp.Allocation) -> None:
            self.found.append(devices.network)

    backend = Cards("w0")
    backend.found = []
    async with running(folder, backend) as driver:
        driver.api.put(claim(0), [result("w0")])
        answer = await driver.prepare(claim(0))
        assert not answer.claims[claim(0).uid].error
        assert await driver.unprepare(claim(0)) == {claim(0).uid: ""}
    assert backend.found == [{}]


async def test_health_is_told_again_before_it_is_too_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT", 1)
    async with running(folder, Widgets("w0")) as driver, driver.health() as stream:
        for _ in range(3):
            assert await heard(stream) == {"w0": (HEALTHY, "")}


@pytest.mark.parametrize("effect", [None, "NoExecute"])
async def test_a_sick_device_has_the_taint_of_the_policy(folder: Path, effect: TaintEffect | None) -> None:
    backend = Widgets("w0", "w1")
    async with running(folder, backend, health_taint=effect) as driver:
        assert driver.publisher.published == [], "not before the kubelet knows the driver"
        await driver.notify()
        await until(lambda: driver.publisher.published)
        for reason in ("it smokes", None):
            sick(backend, reason)
            driver.driver.rescan()
            wanted: list[kdp.Taint] = (
                []
                if effect is None or reason is None
                else [kdp.Taint(key=health_key(DRIVER), effect=effect, value="discover")]
            )

            def is_published(reason: str | None = reason, wanted: list[kdp.Taint] = wanted) -> bool:
                newest = {device.id: device for device in driver.publisher.published[-1]}
                return newest["w0"].health.reason == reason and list(newest["w0"].taints) == wanted

            await until(is_published)


async def test_nothing_is_published_while_a_device_plugin_offers_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed, "LOOK_PAUSE", 0.01)
    backend = Widgets("w0")
    async with running(folder, backend, wait=False) as driver:
        driver.api.allocatable = {Widgets.resource: "3"}
        await until(driver.sockets)
        await driver.notify()
        wanted = "node node0 still offers 3 of example.com/widget by a device plugin"
        await until(lambda: (driver.driver.status().drivers[DRIVER].reason or "").startswith(wanted))
        asked = driver.api.nodes_asked
        await until(lambda: driver.api.nodes_asked > asked + 3)
        status = driver.driver.status().drivers[DRIVER]
        assert (driver.publisher.published, status.state, status.is_ready) == ([], "registered", False)
        assert not driver.driver.is_ready
        assert sum(wanted in record.message for record in caplog.records) == 1
        backend.devices = [kdp.Device(id="w7")]
        driver.driver.rescan()
        driver.api.allocatable = {Widgets.resource: "0"}
        await until(lambda: driver.driver.is_ready)
        await until(lambda: [device.id for device in driver.publisher.published[-1]] == ["w7"])
        status = driver.driver.status().drivers[DRIVER]
        assert (status.reason, status.state, status.problem) == (None, "published", None)
        asked = driver.api.nodes_asked
        backend.devices = [kdp.Device(id="w7"), kdp.Device(id="w8", resource="example.com/other")]
        driver.api.allocatable = {"example.com/other": "1"}
        driver.driver.rescan()
        await until(lambda: "1 of example.com/other" in (driver.driver.status().drivers[DRIVER].problem or ""))
        assert driver.driver.is_ready, "a later problem is told, and not fatal"
        driver.api.allocatable = {}
        await until(lambda: len(driver.publisher.published[-1]) == 2)
        assert driver.driver.status().drivers[DRIVER].problem is None


async def test_a_pool_that_was_never_published_is_not_ready_and_says_why(folder: Path) -> None:
    async with running(folder, Widgets("w0")) as driver:
        never = PublisherStatus(problem="create resourceslices: 403 Forbidden")
        driver.publisher.answer = never
        await driver.notify()
        await until(lambda: driver.publisher.published)
        status = driver.driver.status().drivers[DRIVER]
        assert (status.reason, status.problem, status.is_ready) == (never.problem, None, False)
        driver.publisher.status.set(PublisherStatus(generation=2, withheld={"w1": "DRAPartitionableDevices"}))
        status = driver.driver.status().drivers[DRIVER]
        assert (status.reason, status.problem, status.is_ready) == (None, None, True)
        assert status.publication.withheld == {"w1": "DRAPartitionableDevices"}
        driver.publisher.status.set(PublisherStatus(generation=2, problem="the API server was not reached"))
        status = driver.driver.status().drivers[DRIVER]
        assert (status.reason, status.problem, status.is_ready) == (None, "the API server was not reached", True)


async def test_what_somebody_must_do_something_about_is_an_event_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE", "EVENT_PAUSE"):
        monkeypatch.setattr(plugin, name, 0.02)
    monkeypatch.setattr(feed, "LOOK_PAUSE", 0.01)
    claims = folder / "plugins" / DRIVER / "claims"
    claims.mkdir(parents=True)
    (claims / "the-uid.json").write_bytes(b"\xef\xbb\xbf{")
    async with running(folder, Widgets("w0"), wait=False) as driver:
        driver.api.allocatable = {Widgets.resource: "3"}
        await until(driver.sockets)
        await driver.notify()
        await until(lambda: len(driver.api.events) == 2)
        asked = driver.api.nodes_asked
        await until(lambda: driver.api.nodes_asked > asked + 20)
        aside, waits = driver.api.events
        assert (aside["type"], aside["reason"]) == ("Warning", "ClaimStateSetAside")
        assert aside["message"].startswith(f"{DRIVER}: the saved state of claim the-uid cannot be read")
        assert waits["reason"] == "DevicesNotPublished"
        assert waits["message"].startswith(f"{DRIVER}: node node0 still offers 3 of example.com/widget")
        assert waits["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node0", "uid": "node0"}
        driver.api.allocatable = {}
        await until(lambda: driver.driver.is_ready)
        await asyncio.sleep(0.1)
        assert len(driver.api.events) == 2


async def test_wrong_drivers_are_refused() -> None:
    class Nameless(Widgets):
        resource = None  # type: ignore[assignment]

    def make(*backends: kdp.DeviceBackend, **more: str) -> None:
        DraDriver(backends, DriverOptions(api=None, node="n", **more))  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="there is no backend"):
        make()
    with pytest.raises(ConfigurationError, match=r"Nameless\.resource is None, so the driver has no name"):
        make(Nameless())
    with pytest.raises(ConfigurationError, match="2 backends cannot be one driver"):
        make(Widgets(), Widgets(), name="x.example.com")


async def test_a_pre_start_that_dra_does_not_have_is_said_or_refused_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A driver never called `prepare_container`, and no line said so."""

    class Tested(Widgets):
        @override
        def prepare_container(self, devices: kdp.Allocation) -> None:
            """It must pass before each start."""

    def make(every_start: bool | None) -> str:
        caplog.clear()
        backend = Tested()
        backend.prepares_every_start = every_start
        DraDriver([backend], DriverOptions(api=None, node="n"))  # type: ignore[arg-type]
        return caplog.text

    said = make(None)
    assert "Tested: in DRA mode prepare_container() runs once for each claim" in said
    assert said.count("\n") == 1
    assert make(False) == ""
    with pytest.raises(ConfigurationError, match=r"Tested\.prepares_every_start is True, and in DRA mode no hook runs"):
        make(True)
    with pytest.raises(ConfigurationError, match=r"Tested\.prepares_every_start: 'no' must be True, False, or None"):
        make("no")  # type: ignore[arg-type]


async def test_what_cdi_cannot_carry_is_said_when_it_is_declared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "DISCOVERY_SECONDS", 0.1)
    backend = Widgets("w0")
    backend.devices = [kdp.Device(id="w0", edits=kdp.ContainerEdits(annotations={"example.com/x": "1"}))]
    async with running(folder, backend) as driver:
        await until(
            lambda: (
                "annotation 'example.com/x': a DRA driver gives devices by CDI"
                in (driver.driver.status().backends[0][1] or "")
            )
        )
        driver.api.put(claim(), [result("w0")])
        with anyio.fail_after(PATIENCE):
            answer = await driver.prepare(claim())
        assert answer.claims[claim().uid].error.startswith("Widgets is not ready: discover() of Widgets: annotation")


async def test_counters_that_failed_once_were_never_asked_for_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a poll and an event the pool stayed empty."""
    monkeypatch.setattr(feed, "RETRY_AFTER", 0.01)

    class Counting(Widgets):
        poll_interval = None
        failures = 1

        @override
        def counters(self) -> dict[str, dict[str, int]]:
            if self.failures:
                self.failures -= 1
                raise OSError("the card did not answer")
            return {"card": {"memory": 4}}

    async with running(folder, Counting("w0")) as driver:
        await driver.notify()
        await until(lambda: driver.publisher.more)
        [(counters, _)] = driver.publisher.more
        assert counters == {"card": {"memory": 4}}
