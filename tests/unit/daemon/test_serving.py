from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import anyio
import anyio.to_thread
import attrs
import pytest
from tests.waiting import until
from typing_extensions import override

import kdp
from kdp import ConfigurationError, InvalidValueError
from kdp.allocation import share
from kdp.allocation.sharing import Sharing
from kdp.command import asking
from kdp.daemon import services
from kdp.daemon.parsers import Address
from kdp.daemon.plan import ServingPlan, check_backends
from kdp.daemon.probes import SLOW_START
from kdp.daemon.readiness import Rejection
from kdp.daemon.serving import Daemon, serve
from kdp.daemon.settings import Settings
from kdp.deviceplugin.manager import PluginManager
from kdp.model.backend import tell_mode
from kdp_testkit.patience import PATIENCE


class Widgets(kdp.DeviceBackend):
    resource = "example.com/widget"

    @override
    def discover(self) -> list[kdp.Device]:
        return []


class Gadgets(Widgets):
    pass


class Unnamed(kdp.DeviceBackend):
    @override
    def discover(self) -> list[kdp.Device]:
        return []


class Misnamed(Widgets):
    resource = "widget"


@pytest.mark.parametrize(
    ("backends", "sentence"),
    [
        ([Widgets], "backend Widgets: this is the class; give an object of it, Widgets()"),
        (["x"], "backend 'x': must be an object of a subclass of kdp.DeviceBackend, this is a str"),
        (
            [Widgets(), Gadgets()],
            "resource 'example.com/widget' is named by two backends, Widgets and Gadgets; a resource belongs to one",
        ),
        ([Misnamed()], "Misnamed.resource: resource name 'widget': must be a domain, one slash and a name"),
    ],
)
def test_backends_that_one_process_cannot_serve_are_refused(backends: list[Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_backends(backends)
    assert str(caught.value).startswith(sentence)


def test_thresholds_that_contradict_a_backends_own_are_refused_before_anything_runs() -> None:
    numbers = {"hold_down_max": 30.0}
    with pytest.raises(
        ConfigurationError, match=r"^Widgets.health_policy with .*: hold_down=60 is above hold_down_max=30"
    ):
        ServingPlan((Widgets(),), Settings(health_policy=numbers))
    patient = Widgets()
    patient.health_policy = kdp.HealthPolicy(hold_down=10)
    ServingPlan((patient,), Settings(health_policy=numbers))
    patient.health_policy = 3  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"^Widgets.health_policy: 3 must be a kdp.HealthPolicy"):
        ServingPlan((patient,), Settings())


def test_a_backend_could_not_know_whether_it_is_served_by_dra() -> None:
    @attrs.frozen(eq=False)
    class Frozen(Widgets):
        pass

    backends = Widgets(), Frozen()
    ServingPlan(backends, Settings(mode="dra"))
    assert all(each.is_dra for each in backends)
    ServingPlan(backends, Settings())
    assert not any(each.is_dra for each in backends)


def test_a_constructor_was_told_that_it_is_no_dra_driver() -> None:
    class Tainting(Widgets):
        def __init__(self) -> None:
            self.taints = "taints" if self.is_dra else None

    rule = r"^is_dra of Tainting is not known before open\(\): read it in a hook, and not in __init__"
    with pytest.raises(InvalidValueError, match=rule):
        Tainting()


def test_the_backend_that_a_shared_one_wraps_knows_the_mode_too() -> None:
    card = Widgets()
    shared = share(card, Sharing(replicas=2))
    PluginManager([shared])
    assert (shared.is_dra, card.is_dra) == (False, False)
    tell_mode(shared, is_dra=True)
    assert (shared.is_dra, card.is_dra) == (True, True)


def test_new_logs_need_no_new_manager_but_new_backends_and_paths_do() -> None:
    old = ServingPlan((Widgets(),), Settings())
    assert not attrs.evolve(old, settings=Settings(log_level="debug", log_format="json")).needs_new_manager(old)
    assert attrs.evolve(old, settings=Settings(kubelet_root=Path("/k"))).needs_new_manager(old)
    assert attrs.evolve(old, backends=(Widgets(),)).needs_new_manager(old)


class StandIn:
    """A manager that only remembers what is done with it."""

    supervisors = ()

    def __init__(self, plan: ServingPlan, error: Exception | None = None) -> None:
        self.plan = plan
        self.error = error
        self.rescans = 0
        self.is_entered = False

    async def __aenter__(self) -> Self:
        self.is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_entered = False

    async def failed(self) -> NoReturn:
        if self.error is not None:
            raise self.error
        await anyio.sleep_forever()
        raise AssertionError

    def rescan(self) -> None:
        self.rescans += 1

    def status(self) -> None:
        """Say nothing."""


@pytest.fixture
def managers(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    made: list[StandIn] = []

    def make(plan: ServingPlan, counts: object = None, history: object = None) -> StandIn:
        made.append(StandIn(plan))
        return made[-1]

    monkeypatch.setattr(services, "_plugins", make)
    return made


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(daemon.serve)
        yield
        tasks.cancel_scope.cancel()


async def test_reloading_without_a_configuration_discovers_again(managers: list[StandIn]) -> None:
    daemon = Daemon(ServingPlan((Widgets(),), Settings()))
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        daemon.reload()
        await until(lambda: managers[0].rescans == 1)
    assert len(managers) == 1
    assert not managers[0].is_entered


async def test_a_changed_backend_gets_a_new_manager_after_the_old_one_has_stopped(managers: list[StandIn]) -> None:
    plans = [ServingPlan((Widgets(),), Settings()) for _ in range(2)]
    told: list[ServingPlan] = []
    daemon = Daemon(plans[0], read_again=lambda: plans[1], changed=told.append)
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        daemon.reload()
        await until(lambda: len(managers) == 2 and managers[1].is_entered)
        assert not managers[0].is_entered
        assert managers[1].plan == plans[1]
        daemon.reload()
        await until(lambda: managers[1].rescans == 1)
    assert told == [plans[1], plans[1]]


async def test_a_reload_hands_on_what_is_known_of_a_backend_that_stays(managers: list[StandIn]) -> None:
    stays = Widgets()
    old = ServingPlan((stays, Unnamed()), Settings())
    new = ServingPlan((Unnamed(), stays), Settings(kubelet_root=Path("/k")))
    daemon = Daemon(old, read_again=lambda: new)
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        daemon.reload()
        await until(lambda: len(managers) == 2 and managers[1].is_entered)
    first, second = (manager.plan.states for manager in managers)
    assert second[1] is first[0]
    assert second[0] not in first


@pytest.mark.parametrize("error", [ConfigurationError("set.count in x.yaml: wrong"), RuntimeError("boom")])
async def test_a_wrong_new_configuration_leaves_the_old_one_in_force(
    managers: list[StandIn], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail() -> ServingPlan:
        raise error

    daemon = Daemon(ServingPlan((Widgets(),), Settings()), read_again=fail)
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        daemon.reload()
        await until(lambda: managers[0].rescans == 1)
    assert "the previous configuration stays in force" in caplog.text


async def test_another_mistake_has_a_time_of_its_own(managers: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    moments, mistakes = [100.0, 200.0, 300.0], ["first", "first", "second"]
    rejected: list[float] = []

    def fail() -> ServingPlan:
        raise ConfigurationError(mistakes[len(rejected)])

    daemon = Daemon(ServingPlan((Widgets(),), Settings()), read_again=fail)
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        for moment in moments:
            monkeypatch.setattr("kdp.daemon.serving.time.time", lambda now=moment: now)
            daemon.reload()
            await until(lambda: managers[0].rescans == len(rejected) + 1)
            assert daemon._rejection is not None
            rejected.append(daemon._rejection.since)
    assert rejected == [100.0, 100.0, 300.0]


async def test_a_new_probe_address_that_cannot_be_had_does_not_end_the_process(
    managers: list[StandIn], caplog: pytest.LogCaptureFixture
) -> None:
    old = ServingPlan((Widgets(),), Settings())
    new = attrs.evolve(old, settings=Settings(http=Address("192.0.2.1", 80)))
    daemon = Daemon(old, read_again=lambda: new)
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        daemon.reload()
        await until(lambda: len(managers) == 2 and managers[1].is_entered)
        assert managers[1].plan is old
        assert daemon._rejection is not None
        assert "http address '192.0.2.1:80'" in daemon._rejection.reason
    assert "the previous configuration stays in force: http address '192.0.2.1:80'" in caplog.text


async def test_serve_stops_when_cancelled_and_leaves_signals_and_logs_alone(
    managers: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDP_KUBELET_ROOT", "/from-environment")
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP), logging.getLogger().handlers[:])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(Widgets(), registration="watcher"))
            await until(lambda: managers and managers[0].is_entered)
            assert before == (
                signal.getsignal(signal.SIGTERM),
                signal.getsignal(signal.SIGHUP),
                logging.getLogger().handlers[:],
            )
            scope.cancel()
    assert not managers[0].is_entered
    assert managers[0].plan.settings.registration == "watcher"
    assert managers[0].plan.settings.kubelet_root == Path("/from-environment")


async def test_serve_never_tells_systemd_anything(
    managers: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: serve(Widgets()))
                await until(lambda: managers and managers[0].is_entered)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


def test_serve_outside_asyncio_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"kdp\.serve was awaited outside asyncio"):
        serve(Widgets()).send(None)


async def test_a_start_that_takes_long_was_called_a_hook_that_blocks(managers: list[StandIn]) -> None:
    """Nothing is served yet, so nobody knows what keeps the event loop."""
    daemon = Daemon(ServingPlan((Widgets(),), Settings()))
    assert daemon._why_blocked() == SLOW_START
    async with running(daemon):
        await until(lambda: managers and managers[0].is_entered)
        assert daemon._why_blocked() == SLOW_START


async def test_a_corrected_configuration_waited_for_the_other_mode_that_it_no_longer_minds(
    managers: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdp.daemon.mode_lock._is_held", lambda path: path.name.endswith(".device-plugin.lock"))
    plans = iter(
        ServingPlan((Widgets(),), Settings(mode=mode, state_dir=tmp_path)) for mode in ("dra", "device-plugin")
    )
    daemon = Daemon(next(plans), read_again=lambda: next(plans))
    async with running(daemon):
        await until(lambda: daemon._waiting is not None and daemon._waiting.problem is not None)
        daemon.reload()
        await until(lambda: managers and managers[0].is_entered)
        assert managers[0].plan.settings.mode == "device-plugin"
        assert "example.com_widget.dra.lock" not in os.listdir(tmp_path)


async def test_a_configuration_that_is_read_again_while_the_other_mode_is_there_changes_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdp.daemon.mode_lock._is_held", lambda _: True)
    settings = Settings(state_dir=tmp_path)
    backends = (Widgets(),)
    daemon = Daemon(
        ServingPlan(backends, settings),
        read_again=lambda: ServingPlan(backends, attrs.evolve(settings, log_format="json")),
    )
    async with running(daemon):
        await until(lambda: daemon._waiting is not None and daemon._waiting.problem is not None)
        waiting = daemon._waiting
        daemon.reload()
        await until(lambda: daemon._plan.settings.log_format == "json")
        assert daemon._waiting is waiting


async def test_what_is_read_while_the_other_mode_is_there_is_what_is_proved(
    managers: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [True]
    monkeypatch.setattr("kdp.daemon.mode_lock._is_held", lambda _: held[0])
    monkeypatch.setattr("kdp.daemon.mode_lock.LOOK_PAUSE", 0.01)
    old = ServingPlan((Widgets(),), Settings(state_dir=tmp_path), text="old")
    proved: list[str | None] = []
    daemon = Daemon(old, read_again=lambda: attrs.evolve(old, text="new"), proved=lambda plan: proved.append(plan.text))
    async with running(daemon):
        await until(lambda: daemon._waiting is not None and daemon._waiting.problem is not None)
        daemon.reload()
        await until(lambda: daemon._plan.text == "new")
        held[0] = False
        await until(lambda: proved)
    assert proved == ["new"]


async def test_a_configuration_that_nothing_can_serve_ended_a_process_that_waited_for_the_other_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kdp.daemon.mode_lock._is_held", lambda _: True)
    waits = ServingPlan((Widgets(),), Settings(state_dir=tmp_path))
    settings = Settings(state_dir=None, kubelet_root=Path("/k"))

    @asynccontextmanager
    async def fail(*_: object) -> AsyncIterator[None]:
        raise ConfigurationError("nothing can serve it")
        yield

    monkeypatch.setattr("kdp.daemon.serving.managing", fail)
    daemon = Daemon(waits, read_again=lambda: attrs.evolve(waits, settings=settings))
    async with running(daemon):
        await until(lambda: daemon._waiting is not None and daemon._waiting.problem is not None)
        daemon.reload()
        await until(lambda: "the previous configuration stays in force: nothing can serve it" in caplog.text)
        assert daemon._plan is waits


async def test_after_a_reload_that_changed_the_mode_the_status_told_the_old_one(tmp_path: Path) -> None:
    daemon = Daemon(ServingPlan((Widgets(),), Settings(socket=tmp_path / "s")))
    new = ServingPlan((Widgets(),), Settings(socket=tmp_path / "s", mode="dra", node_name="node-1"))
    code, text = 1, ""
    with daemon._probes(new), anyio.fail_after(PATIENCE):
        while code != 0:  # the socket is made in a thread
            code, text = await anyio.to_thread.run_sync(asking.ask, str(tmp_path / "s"), "/status.json")
    told = json.loads(text)
    assert (told["mode"], told["node"]) == ("dra", "node-1")


@pytest.mark.parametrize("has_socket", [True, False])
async def test_events_are_kept_where_a_command_can_ask_for_them(tmp_path: Path, has_socket: bool) -> None:
    plan = ServingPlan((Widgets(),), Settings(socket=tmp_path / "s" if has_socket else None, state_dir=None))
    daemon = Daemon(plan, rejection=Rejection(reason="unknown key 'x'", since=0.0))
    daemon._begin_history(plan)
    document = daemon._document(daemon._facts, daemon._look())
    kinds = None if document.events is None else [each.kind for each in document.events]
    assert kinds == (["started", "rejected"] if has_socket else None)
