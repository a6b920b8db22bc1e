from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.allocation import Sharing, share
from kdp.errors import HookFailedError
from kdp.hardware import Host
from kdp.supervision import backend_validation
from kdp.supervision.discover import discover_once
from kdp.supervision.supervisor import Supervisor, pause_after
from kdp_testkit.patience import PATIENCE


class Generator(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> Iterator[kdp.Device]:
        yield kdp.Device(id="w0")
        raise TypeError("of the vendor's own")


class AsyncGenerator(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> AsyncIterator[kdp.Device]:  # type: ignore[override]  # a vendor's mistake
        return self._found()

    async def _found(self) -> AsyncIterator[kdp.Device]:
        yield kdp.Device(id="w0")


@pytest.mark.anyio
async def test_a_type_error_inside_a_generator_is_the_hooks_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HookFailedError) as caught:
        await discover_once(Generator(), host=Host())
    assert str(caught.value) == "discover() of Generator raised TypeError; the plugin's log has the details"
    assert "of the vendor's own" in caplog.text


class Endless(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> Iterator[kdp.Device]:
        return (kdp.Device(id=f"w{number}") for number in itertools.count())


@pytest.mark.anyio
async def test_a_generator_without_an_end_filled_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_validation, "MOST_DEVICES", 1_000)
    with pytest.raises(HookFailedError) as caught:
        await discover_once(Endless(), host=Host())
    assert str(caught.value) == (
        "discover() of Endless: it returned more than 1,000 devices, and no list can carry them; let a generator end"
    )


@pytest.mark.anyio
async def test_what_is_no_iterable_is_called_the_same_each_time() -> None:
    told: set[str] = set()
    for _ in range(3):
        with pytest.raises(HookFailedError) as caught:
            await discover_once(AsyncGenerator(), host=Host())
        told.add(str(caught.value))
    assert told == {
        (
            "discover() of AsyncGenerator: it returned <async_generator object AsyncGenerator._found>: must be an "
            "iterable of kdp.Device"
        )
    }


@pytest.mark.parametrize(("took", "rest"), [(0.1, 4.9), (2.6, 2.5), (30.0, 2.5)], ids=lambda value: str(value))
def test_discoveries_begin_an_interval_apart_unless_they_are_slow(took: float, rest: float) -> None:
    assert pause_after(took, interval=5.0) == pytest.approx(rest)


class Plain(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


@pytest.mark.anyio
async def test_no_hook_is_called_for_a_protocol_while_the_backend_is_not_ready() -> None:
    """One was, between ``close`` and ``open``; and ``counters`` that said so was asked as fast as it could."""
    supervisor = Supervisor(Plain(), host=Host())
    with pytest.raises(kdp.NotReady, match="Plain is not ready: it has not discovered anything yet"):
        await supervisor.call("counters", deadline=60.0)


def test_a_misspelt_hook_is_a_warning_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(kdp.DeviceBackend):
        resource = "example.com/widget"

        @override
        def discover(self) -> list[kdp.Device]:
            return []

        def alocate(self) -> None: ...

    Supervisor(Careless(), host=None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "did you mean 'allocate'?" in caplog.text


class TwoResources(kdp.DeviceBackend):
    poll_interval = 0.01

    def __init__(self, *variables: dict[str, str]) -> None:
        self.variables = variables
        self.thrice = threading.Event()
        self.count = 0

    @override
    def discover(self) -> list[kdp.Device]:
        self.count += 1
        if self.count == 3:
            self.thrice.set()
        return [
            kdp.Device(id=f"w{number}", resource=f"example.com/{kind}", edits=kdp.ContainerEdits(env=env))
            for number, (kind, env) in enumerate(zip("aab", self.variables, strict=True))
        ]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("variables", "is_told"),
    [
        (({"IDS": "0"}, {"IDS": "1"}, {"IDS": "0"}), True),  # a container may get 1 of the one and 0 of the other
        (({"IDS_A": "0"}, {"IDS_A": "1"}, {"IDS_B": "2"}), False),
        (({"MODE": "fast"}, {"MODE": "fast"}, {"MODE": "fast"}), False),
    ],
)
async def test_two_resources_that_set_one_variable_differently_are_told_once(
    variables: tuple[dict[str, str], ...], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend = TwoResources(*variables)
    supervisor = Supervisor(backend, host=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        assert await anyio.to_thread.run_sync(backend.thrice.wait, PATIENCE)
        tasks.cancel_scope.cancel()
    await supervisor.shutdown(PATIENCE)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warning = (
        "TwoResources: example.com/a and example.com/b set environment variable IDS to different values; a container "
        "that asks for both gets one of them; name the variable by its resource, or give device nodes, mounts, or CDI "
        "names"
    )
    assert told == ([warning] if is_told else [])


class Cards(kdp.DeviceBackend):
    """Cards with a slot each; the firmware of those in ``sick`` cannot be read."""

    resources = ("example.com/slot",)
    poll_interval = 0.01

    def __init__(self, *cards: str, sick: tuple[str, ...] = ()) -> None:
        self.cards = cards
        self.sick = set(sick)

    @override
    def discover(self) -> list[kdp.Device]:
        return kdp.Device.each(self.cards, self._slot, id=str)

    def _slot(self, card: str) -> kdp.Device:
        if card in self.sick:
            raise OSError("no answer")
        return kdp.Device(
            id=card,
            resource="example.com/slot",
            unit=f"unit-{card}",
            consumes={"power": {"watts": 75}},
            edits=kdp.ContainerEdits.of_node("/dev/null"),
        )


SICK = "it cannot be described: no answer"


@pytest.mark.anyio
@pytest.mark.parametrize("replicas", [None, 2])
async def test_a_slot_that_could_not_be_described_lost_its_resource_and_its_nodes(replicas: int | None) -> None:
    cards = Cards("c0", "c1")
    backend = cards if replicas is None else share(cards, Sharing(replicas=replicas))
    supervisor = Supervisor(backend, host=Host())

    async def devices(reason: str | None) -> dict[str, kdp.Device]:
        """Return the devices as soon as one has this reason."""
        with anyio.fail_after(PATIENCE):
            while reason not in {device.health.reason for device in supervisor.discovery.value.devices or ()}:
                await supervisor.discovery.after(supervisor.discovery.version)
        return {device.id: device for device in supervisor.discovery.value.devices or ()}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        before = await devices(None)
        cards.sick.add("c1")
        after = await devices(SICK)
        tasks.cancel_scope.cancel()
    assert after.keys() == before.keys()
    for name, device in before.items():
        assert attrs.evolve(after[name], health=device.health) == device


@pytest.mark.anyio
async def test_a_device_that_was_never_described_and_names_no_resource_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = await discover_once(Cards("c0", "c1", sick=("c1",)), host=Host())
    assert [device.id for devices in found.values() for device in devices] == ["c0"]
    assert "Cards: device c1 is left out, as it names no resource: Unhealthy (it cannot be described" in caplog.text


class Misspelt(kdp.DeviceBackend):
    resource = "example.com/card"
    resources = ("example.com/slto",)

    @override
    def discover(self) -> list[kdp.Device]:
        return [kdp.Device(id="c0"), kdp.Device(id="s0", resource="example.com/slot")]


@pytest.mark.anyio
async def test_a_misspelt_resource_was_served_without_a_device_and_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor(Misspelt(), host=Host(), poll_interval=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE):
            for _ in range(3):  # discoveries
                await supervisor.discovery.after(supervisor.discovery.version)
        tasks.cancel_scope.cancel()
    [told] = [record.getMessage() for record in caplog.records if "misspelt" in record.getMessage()]
    assert told == (
        "Misspelt: devices are of example.com/slot, and no device is of example.com/slto, which the class names: is "
        "one of them misspelt?"
    )


class Repaced(kdp.DeviceBackend):
    """Learns while it serves how often it wants to be asked, as from a file that was changed."""

    resource = "example.com/widget"

    def __init__(self) -> None:
        self.poll_interval: float | None = 3600.0
        self.looks = 0
        self.is_at_pace = anyio.Event()

    @override
    async def discover(self) -> list[kdp.Device]:
        self.poll_interval = 0.01
        self.looks += 1
        if self.looks == 3:
            self.is_at_pace.set()
        return []


@pytest.mark.anyio
async def test_an_interval_that_a_backend_changed_was_ignored() -> None:
    supervisor = Supervisor(backend := Repaced(), host=Host())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE):
            await backend.is_at_pace.wait()
        tasks.cancel_scope.cancel()
    assert supervisor.poll_interval == 0.01


class Mispaced(Repaced):
    @override
    async def discover(self) -> list[kdp.Device]:
        found = await super().discover()
        self.poll_interval = -1.0
        return found


@pytest.mark.parametrize(
    ("make", "more", "interval"),
    [(Repaced, {"poll_interval": 60.0}, 60.0), (Repaced, {"poll_interval": None}, None), (Mispaced, {}, 3600.0)],
    ids=["the admin's", "never", "one that cannot be"],
)
@pytest.mark.anyio
async def test_an_interval_that_a_backend_changed_is_in_force_only_if_it_may(
    make: type[Repaced], more: dict[str, Any], interval: float | None
) -> None:
    supervisor = Supervisor(backend := make(), host=Host(), **more)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE):
            await supervisor.discovery.after(supervisor.discovery.version)
        tasks.cancel_scope.cancel()
    assert (backend.looks, supervisor.poll_interval) == (1, interval)


@pytest.mark.anyio
async def test_a_device_without_declared_counters_was_healthy_in_commands_only() -> None:
    class Partitions(Plain):
        @override
        def discover(self) -> list[kdp.Device]:
            return [kdp.Device(id="whole"), kdp.Device(id="part", consumes={"card": {"memory": 1}})]

    class Misdeclared(Partitions):
        @override
        def counters(self) -> dict[str, dict[str, int]]:
            return {"cards": {"memory": 1}}

    for backend in (Partitions(), Misdeclared()):
        whole, part = (await discover_once(backend, host=Host()))["example.com/widget"]
        assert whole.health.is_healthy
        assert part.health.reason == "it needs 1 of memory of card, which counters() does not declare"
