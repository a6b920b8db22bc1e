"""`kdp.run` and ``kdp run`` as processes: signals, exit codes, logs, probes, reload."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio import to_thread

from kdp.daemon.logs import EXTRA_KEYS
from kdp.testing import AdmissionError, Pod, SimulatedKubelet, events
from kdp_testkit.patience import PATIENCE

Figure = Callable[[str, float, str], None]
Start = Callable[..., AbstractAsyncContextManager[Any]]

RESOURCE = "example.com/widget"
PROGRAM = """
import sys, threading, time
import kdp

def say(text):
    print(text, file=sys.stderr, flush=True)

def hang():
    say("hanging")
    threading.Event().wait()

class W(kdp.DeviceBackend):
    resource = "example.com/widget"
    poll_interval = None

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def discover(self):
        return [kdp.Device(id=f"w{i}") for i in range(self.count)]
    # more
if __name__ == "__main__":
    kdp.run(W())
"""


def program(more: str = "") -> str:
    """Return the program above with more methods, written without indentation."""
    return PROGRAM.replace("# more", more.strip().replace("\n", "\n    "))


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "number"), [((), signal.SIGTERM), (("W",), signal.SIGINT)], ids=["kdp.run", "kdp run"]
)
async def test_asked_to_stop_it_ends_in_order(
    start: Start, kubelet: SimulatedKubelet, arguments: tuple[str, ...], number: signal.Signals, figure: Figure
) -> None:
    async with start(program(), *arguments) as plugin:
        await kubelet.until(streaming=RESOURCE, allocatable={RESOURCE: 2})
        code, took = await plugin.stop(number)
    figure(f"stop of {'kdp run' if arguments else 'kdp.run'} by {number.name}", took * 1000, "ms")
    assert code == 0
    assert took < PATIENCE
    assert f"stopping, as {number.name} asks" in plugin.log
    assert plugin.lines[-1].endswith("kdp.daemon.process: stopped")
    assert [path.name for path in kubelet.paths.device_plugin_dir.iterdir() if path.is_socket()] == ["kubelet.sock"]


async def test_without_a_kubelet_it_stops_just_as_well(start: Start, kubelet: SimulatedKubelet) -> None:
    await kubelet.stop()
    async with start(program()) as plugin:
        await plugin.says("not registered")
        assert (await plugin.stop())[0] == 0


HANGS = {
    "discover in the event loop": "async def discover(self): hang()",
    "close": "def close(self): hang()",
    "a thread that is no daemon": "def open(self): threading.Thread(target=hang, daemon=False).start()",
}


@pytest.mark.parametrize("hang", HANGS)
async def test_a_hang_does_not_keep_it_from_stopping(
    start: Start, kubelet: SimulatedKubelet, hang: str, figure: Figure
) -> None:
    source = program(HANGS[hang])
    async with start(source) as plugin:
        if hang == "close":
            await kubelet.until(streaming=RESOURCE)
        else:
            await plugin.says("hanging")
        code, took = await plugin.stop()
    figure(f"stop while {hang} hangs", took * 1000, "ms")
    assert code == 0, plugin.log
    assert took < PATIENCE, plugin.log


async def test_hooks_that_hang_all_at_once_do_not_keep_it_from_stopping(
    start: Start, kubelet: SimulatedKubelet, figure: Figure
) -> None:
    more = """
calls = 0
def discover(self):
    type(self).calls += 1
    if self.calls > 1:
        say("discover hangs")
        hang()
    return [kdp.Device(id="w0")]
def watch(self, report):
    report.rescan()
    hang()
def allocate(self, devices):
    say("allocate hangs")
    hang()
"""
    async with start(program(more)) as plugin:
        await kubelet.until(allocatable={RESOURCE: 1})
        async with anyio.create_task_group() as tasks:

            async def refused() -> None:
                with pytest.raises(AdmissionError):
                    await kubelet.admit(Pod.asking({RESOURCE: 1}))

            tasks.start_soon(refused)
            await plugin.says("allocate hangs")
            await plugin.says("discover hangs")
            code, took = await plugin.stop()
    figure("stop while discover, watch and allocate hang", took * 1000, "ms")
    assert code == 0, plugin.log
    assert took < PATIENCE, plugin.log


async def test_asked_to_stop_while_the_target_is_loaded_it_ends(start: Start) -> None:
    async with start(program("hang()"), "W") as plugin:
        await plugin.says("hanging")
        code, took = await plugin.stop()
    assert code == 0, plugin.log
    assert took < PATIENCE


# Exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "environment", "sentence"),
    [
        (program(), {"KDP_HTTP": "8080"}, "kdp: KDP_HTTP: '8080' must be ADDRESS:PORT"),
        (
            program().replace("    kdp.run", (
                "    async def main(): kdp.run(W())\n    import asyncio; asyncio.run(main())\n    kdp.run"
            )),
            {},
            "kdp: kdp.run was called inside a running event loop; await kdp.serve there",
        ),
        (
            program().replace("    kdp.run(W())", (
                "    t = threading.Thread(target=lambda: kdp.run(W()))\n    t.start()\n    t.join(); "
                "raise SystemExit(2)"
            )),
            {},
            "kdp: kdp.run was called outside the main thread, where signals cannot be handled",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_configuration_is_one_sentence_and_exit_code_2(
    start: Start, source: str, environment: dict[str, str], sentence: str
) -> None:
    async with start(source, **environment) as plugin:
        code = await plugin.ends()
    assert code == 2
    assert plugin.log.startswith(sentence)
    assert len(plugin.lines) == 1


@pytest.mark.parametrize("way", ["file", "kdp.run"])
async def test_a_refusal_at_the_start_is_json_if_the_log_is(start: Start, tmp_path: Path, way: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("log-format: json\n" if way == "file" else "")
    arguments = () if way == "kdp.run" else ("W", "--config", str(config))
    variables = {"KDP_LOG_FORMAT": "json"} if way == "kdp.run" else {}
    async with start(program(), *arguments, KDP_POLL_INTERVAL="soon", **variables) as plugin:
        assert await plugin.ends() == 2
    [line] = plugin.lines
    assert json.loads(line)["level"] == "critical"
    assert json.loads(line)["msg"].startswith("KDP_POLL_INTERVAL: 'soon' must be")


@pytest.mark.parametrize("text", ["log-format: json\nunknown: 1\n", "log-format: json\nset: {\n"])
async def test_a_bad_file_that_asks_for_json_is_refused_in_json(start: Start, tmp_path: Path, text: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    async with start(program(), "W", "--config", str(config)) as plugin:
        assert await plugin.ends() == 2
    [line] = plugin.lines
    assert json.loads(line)["msg"].startswith(f"configuration file {config}:")


async def test_a_typo_in_a_path_is_a_warning(start: Start, kubelet: SimulatedKubelet) -> None:
    """The plugin was ready with 0 devices, and the log had nothing above INFO."""
    async with start(program(), "W", "--kubelet-root", "/var/lib/kubelett") as plugin:
        line = await plugin.says("--kubelet-root /var/lib/kubelett: there is no such directory")
        assert "WARNING" in line
        await kubelet.until(streaming=RESOURCE)


async def test_an_address_in_use_is_told_with_exit_code_2(start: Start) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django
        async with start(program(), KDP_HTTP=f"127.0.0.1:{port}") as plugin:
            assert await plugin.ends() == 2
    assert f"ending: http address '127.0.0.1:{port}': cannot listen there (Address already in use)" in plugin.log


async def test_a_plugin_directory_that_is_gone_is_told_with_exit_code_3(
    start: Start, kubelet: SimulatedKubelet
) -> None:
    # /proc/self/cwd names an unlinked directory as a pinned mount does: it is there, with no link to it.
    directory = kubelet.paths.device_plugin_dir
    async with start(program(), cwd=directory, KDP_LOG_FORMAT="json", KDP_DEVICE_PLUGIN_DIR="/proc/self/cwd") as plugin:
        await kubelet.until(streaming=RESOURCE)
        await kubelet.crash()
        while directory.exists():  # the plugin may remove its socket meanwhile
            shutil.rmtree(directory, ignore_errors=True)
        assert await plugin.ends() == 3
    assert json.loads(plugin.lines[-1])["level"] == "critical"


async def test_an_internal_failure_is_told_with_its_traceback_and_exit_code_1(start: Start) -> None:
    source = program().replace(
        "if __name__",
        "import kdp.daemon.services\nkdp.daemon.services._plugins = lambda *_: 1 / 0\nif __name__",
    )
    async with start(source) as plugin:
        assert await plugin.ends() == 1
    assert "CRITICAL kdp.daemon.process: ending because of an error that is a bug of kdp" in plugin.log
    assert plugin.lines[-1] == "    ZeroDivisionError: division by zero"


# Reload and stacks ----------------------------------------------------------------------------------------------------


async def test_sighup_discovers_again_over_the_living_stream(start: Start, kubelet: SimulatedKubelet) -> None:
    more = """
def discover(self):
    self.count += 1
    return [kdp.Device(id=f"w{i}") for i in range(self.count)]
"""
    async with start(program(more)) as plugin:
        await kubelet.until(allocatable={RESOURCE: 3})
        plugin.process.send_signal(signal.SIGHUP)
        await kubelet.until(allocatable={RESOURCE: 4})
        assert len(kubelet.events.of(events.StreamOpened)) == 1
        assert (await plugin.stop())[0] == 0


HANDLES = """
async def open(self):
    import signal
    loop = asyncio.get_running_loop()
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2):
        loop.add_signal_handler(number, say, f"the hook has {number.name}")
    loop.remove_signal_handler(signal.SIGUSR2)

def discover(self):
    self.count += 1
    return [kdp.Device(id=f"w{i}") for i in range(self.count)]
"""


async def test_a_hook_that_handles_a_signal_took_all_of_them(start: Start, kubelet: SimulatedKubelet) -> None:
    """asyncio sets a wakeup descriptor of its own: SIGTERM and SIGHUP were lost, and the pod ended by SIGKILL."""
    async with start(f"import asyncio\n{program(HANDLES)}") as plugin:
        await kubelet.until(allocatable={RESOURCE: 3})
        plugin.process.send_signal(signal.SIGUSR1)
        await plugin.says("the hook has SIGUSR1")
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("the hook has SIGHUP")
        await kubelet.until(allocatable={RESOURCE: 4})
        code, took = await plugin.stop()
    assert code == 0, plugin.log
    assert took < PATIENCE
    assert "stopping, as SIGTERM asks" in plugin.log


SLOW_OPEN = """
def open(self):
    say("opening")
    while not os.path.exists("may-open"):
        threading.Event().wait(0.01)
    say("opened")

def close(self): say("closed")
"""


async def test_a_new_configuration_while_open_was_slow_opened_twice(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    config, may_open = tmp_path / "c.yaml", tmp_path / "may-open"
    config.write_text("set: {count: 3}\n")
    source = program(SLOW_OPEN).replace('"may-open"', repr(str(may_open)))
    async with start(f"import os\n{source}", "W", "--config", str(config), KDP_HTTP="127.0.0.1:0") as plugin:
        await plugin.says("opening")
        config.write_text("set: {count: 3}\npoll-interval: 7\n")
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.says("restarting with the changed configuration")
        await plugin.says("health probes at", times=2)
        await plugin.until_readyz(503, has="backends")  # the new manager serves the object: a late open counts for it
        may_open.touch()
        await kubelet.until(allocatable={RESOURCE: 3}, streaming=RESOURCE)
        assert (await plugin.stop())[0] == 0
    assert [line for line in plugin.lines if line in ("opening", "opened", "closed")] == ["opening", "opened", "closed"]


async def test_sigquit_shows_all_stacks_and_goes_on(start: Start, kubelet: SimulatedKubelet) -> None:
    more = "def watch(self, report): report.stopping.wait()"
    async with start(program(more)) as plugin:
        await kubelet.until(streaming=RESOURCE)
        plugin.process.send_signal(signal.SIGQUIT)
        await plugin.says("SIGQUIT: the stacks of all threads")
        await plugin.says("in watch")
        await plugin.says("kdp/deviceplugin/manager.py")
        assert (await plugin.stop())[0] == 0


UNREAD = """
def open(self):
    import os
    _, full = os.pipe()
    os.set_blocking(full, False)
    try:
        while True:
            os.write(full, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(full, True)
    os.dup2(full, 2)
"""


def _has_pending_signals(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd"))


async def test_stacks_that_nobody_reads_keep_no_process_from_its_end(start: Start, kubelet: SimulatedKubelet) -> None:
    """The thread that ends the process in any case waited in the pipe for ever."""
    async with start(program(UNREAD)) as plugin:
        await kubelet.until(streaming=RESOURCE)
        plugin.process.send_signal(signal.SIGQUIT)
        with anyio.fail_after(PATIENCE):
            while await to_thread.run_sync(_has_pending_signals, plugin.process.pid):  # noqa: ASYNC110 - the kernel is asked
                await anyio.sleep(0.01)
        assert (await plugin.stop())[0] == 0


# Logs -----------------------------------------------------------------------------------------------------------------


async def test_as_json_every_line_is_json_also_over_restarts_of_the_kubelet(
    start: Start, kubelet: SimulatedKubelet
) -> None:
    async with start(program(), KDP_LOG_FORMAT="json", KDP_LOG_LEVEL="debug") as plugin:
        await kubelet.until(streaming=RESOURCE)
        for _ in range(3):
            await kubelet.restart(down=0.05)
            await kubelet.until(streaming=RESOURCE)
        assert (await plugin.stop())[0] == 0
    for line in plugin.lines:
        fields = json.loads(line)
        assert fields.keys() >= {"ts", "level", "logger", "msg"}
        assert fields.keys() <= {"ts", "level", "logger", "msg", "exc", *EXTRA_KEYS}
        assert "exc" not in fields


async def test_the_command_loads_no_more_than_it_needs(start: Start, kubelet: SimulatedKubelet) -> None:
    more = """
def watch(self, report):
    heavy = {"rich", "yaml", "cattrs", "http.server", "json", "importlib.metadata", "kdp.testing", "pytest"}
    say(f"loaded: {sorted(heavy & set(sys.modules))}")
"""
    async with start(program(more), "W", "--set", "count=3") as plugin:
        await kubelet.until(allocatable={RESOURCE: 3})
        assert await plugin.says("loaded:") == "loaded: []"


# systemd --------------------------------------------------------------------------------------------------------------


async def test_systemd_is_told_when_it_is_ready_and_when_it_stops(
    start: Start, kubelet: SimulatedKubelet, tmp_path: Path
) -> None:
    heard: list[str] = []

    async def told(text: str) -> None:
        with anyio.fail_after(PATIENCE):
            while text not in heard:
                heard.extend((await listener.receive())[0].decode().splitlines())

    await kubelet.crash()
    async with (
        await anyio.create_unix_datagram_socket(local_path=tmp_path / "notify") as listener,
        start(program(), "W", NOTIFY_SOCKET=str(tmp_path / "notify")) as plugin,
    ):
        await told("STATUS=starting")
        await plugin.says("not registered")
        assert "READY=1" not in heard
        await kubelet.start()
        await told("READY=1")
        await told(f"STATUS={RESOURCE}: devices 2, healthy 2")
        assert (await plugin.stop())[0] == 0
        await told("STOPPING=1")
    assert heard.count("READY=1") == 1


# Probes ---------------------------------------------------------------------------------------------------------------


async def test_the_probes_follow_the_streams(start: Start, kubelet: SimulatedKubelet) -> None:
    async with start(program(), KDP_HTTP="127.0.0.1:0", KDP_LOG_FORMAT="json") as plugin:
        await kubelet.until(streaming=RESOURCE)
        assert await plugin.asked("/livez") == (200, "ok\n")
        resource = (await plugin.until_readyz(200))["resources"][RESOURCE]
        assert resource == {"state": "connected", "reason": None, "devices": 2, "healthy": 2}

        await kubelet.crash()
        assert (await plugin.until_readyz(503))["resources"][RESOURCE]["state"] != "connected"
        assert await plugin.asked("/livez") == (200, "ok\n")
        assert (await plugin.stop())[0] == 0
