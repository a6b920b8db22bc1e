"""The scenario of ``kdp simulate``: the plugin's process, the simulated kubelet, and what must come of the two.

Rule: every wait has a deadline, and its end is a sentence about the plugin. Whatever happens, the plugin's process and
everything that it started are gone when `Scenario.run` returns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, final

import anyio

from ..errors import ConfigurationError
from ..names import MAX_DEVICE_ID_LENGTH
from ..testing import (
    PROFILES,
    AdmissionError,
    ContainerReply,
    ContainerStartError,
    NotReached,
    Pod,
    ScenarioError,
    SimulatedKubelet,
)
from ..testing import events as seen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import ByteReceiveStream, Process

__all__ = ["Misconfigured", "Scenario", "ScenarioFailed", "Tell"]

DOWNTIME = 0.1
"""Seconds for which the kubelet is away when it is killed."""

_T = TypeVar("_T")


class ScenarioFailed(Exception):
    """The plugin did not do what it must; the text is a sentence about it."""


class Misconfigured(Exception):
    """The plugin's process did not start because of what it was given; the text is its own sentence."""


class Tell(Protocol):
    """Tells one thing that happened: a name and fields for programs, a line for people."""

    def __call__(self, event: str, line: str, fields: Mapping[str, object], *, at: float | None = None) -> None:
        """Tell it; ``at`` is when, of `time.monotonic`, default now."""
        ...


@final
class Scenario:
    """One run of the scenario.

    Args:
        arguments: What follows ``kdp run``: the target and its options.
        profile: Which kubelet.
        deadline: Seconds that one step may take.
        tell: Told of each thing that happens.
    """

    def __init__(self, arguments: Sequence[str], *, profile: str, deadline: float, tell: Tell) -> None:
        if profile not in PROFILES:
            raise ConfigurationError(f"--profile: {profile!r} is not known; known are {', '.join(PROFILES)}")
        self._arguments = arguments
        self._profile = profile
        self._deadline = deadline
        self._teller = tell
        self._held_back: list[Callable[[], None]] | None = []
        self._probes = anyio.Event()
        self._probes_address = ""
        self._log: deque[str] = deque(maxlen=200)
        self._exit_code: int | None = None

    def _tell(self, event: str, line: str, fields: Mapping[str, object], *, at: float | None = None) -> None:
        """Tell, but hold the beginning back until the plugin's process has accepted its configuration."""
        at = time.monotonic() if at is None else at
        if self._held_back is None:
            self._teller(event, line, fields, at=at)
        else:
            self._held_back.append(lambda: self._teller(event, line, fields, at=at))

    def _tell_held_back(self) -> None:
        held_back, self._held_back = self._held_back or [], None
        for tell in held_back:
            tell()

    @property
    def log(self) -> list[str]:
        """The last lines of the plugin's log."""
        return list(self._log)

    async def run(self) -> None:
        """Go through the scenario.

        Raises:
            ScenarioFailed: The plugin did not pass, or the scenario was interrupted.
            Misconfigured: The plugin's process said that its configuration is wrong.
        """
        interrupted = ""
        failure: ScenarioFailed | Misconfigured | None = None
        async with anyio.create_task_group() as tasks:

            async def interrupt() -> None:
                nonlocal interrupted
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for number in signals:
                        interrupted = number.name
                        tasks.cancel_scope.cancel()

            tasks.start_soon(interrupt)
            failure = await self._outcome()
            tasks.cancel_scope.cancel()
        if interrupted:
            raise ScenarioFailed(f"interrupted by {interrupted}")
        if isinstance(failure, ScenarioFailed):
            self._tell_held_back()
        if failure is not None:
            raise failure

    async def _outcome(self) -> ScenarioFailed | Misconfigured | None:
        """Return the failure instead of raising it, so that no group wraps it."""
        try:
            with TemporaryDirectory(prefix="kdp-", ignore_cleanup_errors=True) as root:
                async with SimulatedKubelet(root, profile=self._profile) as kubelet:
                    paths = kubelet.paths
                    (started,) = kubelet.events.of(seen.KubeletStarted)
                    self._tell(
                        "kubelet_started",
                        f"kubelet {self._profile} listens in {paths.device_plugin_dir}",
                        {"profile": self._profile, "device_plugin_dir": str(paths.device_plugin_dir)},
                        at=started.time,
                    )
                    async with self._plugin(kubelet) as plugin:
                        return await self._against(self._steps(kubelet, plugin), plugin)
        except ExceptionGroup as group:
            if (failure := _in_group(group)) is None:
                raise
            return failure
        except (ScenarioFailed, Misconfigured) as failure:
            return failure
        except ScenarioError as error:  # the directory's name is too long for sockets in it
            return Misconfigured(f"Error: {error} (the variable TMPDIR says where)")

    async def _against(self, steps: Awaitable[None], plugin: Process) -> ScenarioFailed | Misconfigured | None:
        """Go through the steps, unless the plugin ends before its time."""
        failure: ScenarioFailed | Misconfigured | None = None
        async with anyio.create_task_group() as tasks:

            async def watch_plugin() -> None:
                nonlocal failure
                code = await plugin.wait()
                if self._exit_code is None:  # nobody asked it to end
                    await self._log_complete.wait()
                    failure = self._early_end(code)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(watch_plugin)
            try:
                await steps
            except ScenarioFailed as error:
                failure = error
            except (AdmissionError, ContainerStartError) as error:
                failure = ScenarioFailed(f"the pod was refused: {error}")
            if failure is not None:
                with anyio.move_on_after(0.3):
                    await plugin.wait()  # if it has died, that is why: the task above tells it
                    await anyio.sleep_forever()
            tasks.cancel_scope.cancel()
        return failure

    def _early_end(self, code: int) -> ScenarioFailed | Misconfigured:
        if code == 2:
            return Misconfigured(self._log[-1] if self._log else "the plugin's process refused its configuration")
        return ScenarioFailed(f"the plugin ended {_exit(code)} although nobody asked it to")

    # The plugin's process ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _plugin(self, kubelet: SimulatedKubelet) -> AsyncGenerator[Process]:
        paths = kubelet.paths
        root = paths.device_plugin_dir.parent
        command = [
            *(sys.executable, "-m", "kdp.cli.child", "run", *self._arguments),
            *("--device-plugin-dir", str(paths.device_plugin_dir)),
            *("--plugins-registry-dir", str(paths.plugins_registry_dir)),
            *("--pod-resources-dir", str(paths.pod_resources_dir)),
            *("--pods-api-dir", str(paths.pods_api_dir)),
            # Nothing of the machine's own: a plugin that serves here for real must not notice.
            *("--kubelet-root", str(root), "--state-dir", str(root / "state")),
            *("--log-format", "json", "--log-level", "info", "--http", "127.0.0.1:0"),
        ]
        self._log_complete = anyio.Event()
        self._started = time.monotonic()
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "KDP_PARENT_PID": str(os.getpid())},
            start_new_session=True,  # so that a Ctrl-C reaches only us, and its children can be ended with it
        )
        self._tell(
            "plugin_started",
            f"plugin started: kdp run {' '.join(self._arguments)} (process {process.pid})",
            {"pid": process.pid, "arguments": list(self._arguments)},
            at=self._started,
        )
        try:
            async with anyio.create_task_group() as tasks:
                assert process.stderr is not None
                tasks.start_soon(self._read_log, process.stderr)
                yield process
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with anyio.move_on_after(5):
                    await process.wait()
                await process.aclose()

    async def _read_log(self, stream: ByteReceiveStream) -> None:
        rest = b""
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take_log_line(line.decode(errors="replace"))
        if rest:
            self._take_log_line(rest.decode(errors="replace"))
        self._log_complete.set()

    def _take_log_line(self, line: str) -> None:
        try:
            fields = json.loads(line)
            text = f"{fields['level'].upper():<7} {fields['logger']}: {fields['msg']}"
        except (ValueError, KeyError, TypeError, AttributeError):
            self._log.append(line)  # not from logging: a print, a crash
            return
        self._log.append(text)
        self._log.extend(fields.get("exc", "").splitlines())
        if "address" in fields:
            self._probes_address = str(fields["address"])
            self._probes.set()

    # The steps -----------------------------------------------------------------------------------------------------

    async def _steps(self, kubelet: SimulatedKubelet, plugin: Process) -> None:
        resources = await self._registers(kubelet)
        for resource in resources:
            self._lists(kubelet, resource)
        for resource in resources:
            await self._answers_for_a_pod(kubelet, resource)
        await self._comes_back(kubelet, resources)
        await self._stops(kubelet, plugin)

    async def _registers(self, kubelet: SimulatedKubelet) -> list[str]:
        await self._until_ready(kubelet)
        streaming = {event.resource for event in kubelet.events.of(seen.StreamOpened)}
        resources = sorted(streaming)
        for resource in resources:
            await self._in_time(kubelet.until(streaming=resource, timeout=self._deadline), f"{resource} sent no list")
            at = _registered_at(kubelet, resource, since=0.0)
            seconds = at - self._started
            self._tell(
                "registered",
                f"{resource} registered, {seconds * 1000:.0f} ms after the plugin's start",
                {"resource": resource, "seconds": round(seconds, 6)},
                at=at,
            )
        return resources

    async def _until_ready(self, kubelet: SimulatedKubelet) -> None:
        """Wait until the plugin itself says that every resource has a stream: only it knows how many there are."""
        body = ""
        with anyio.move_on_after(self._deadline):
            await self._probes.wait()
            self._tell_held_back()
            while True:
                status, body = await _get(self._probes_address)
                if status == 200 and kubelet.events.of(seen.StreamOpened):
                    return
                with anyio.move_on_after(0.02):
                    await kubelet.events.change()
        refused = [event.error for event in kubelet.events.of(seen.RegisterAnswered) if event.error]
        why = f"the kubelet answered {refused[-1]!r}" if refused else _why_not_ready(body)
        raise ScenarioFailed(f"the plugin did not register within {self._deadline:g} s: {why}")

    def _lists(self, kubelet: SimulatedKubelet, resource: str) -> None:
        last = kubelet.events.of(seen.ListReceived, resource=resource)[-1]
        devices = kubelet.devices(resource)
        if last.healthy + last.unhealthy != len(devices):
            raise ScenarioFailed(f"{resource} lists {last.healthy + last.unhealthy} devices, but some ids twice")
        for device in devices:
            if not 1 <= len(device) <= MAX_DEVICE_ID_LENGTH:
                raise ScenarioFailed(f"{resource} lists the id {device!r} of {len(device)} characters")
        self._tell(
            "listed",
            f"{resource}: {len(devices)} device{'' if len(devices) == 1 else 's'}, {last.healthy} healthy",
            {"resource": resource, "devices": sorted(devices), "healthy": last.healthy, "unhealthy": last.unhealthy},
            at=last.time,
        )

    async def _answers_for_a_pod(self, kubelet: SimulatedKubelet, resource: str) -> None:
        if not kubelet.allocatable().get(resource):
            self._tell("pod_skipped", f"{resource}: no healthy device, so no pod is tried", {"resource": resource})
            return
        began = time.monotonic()
        pod = await self._in_time(
            kubelet.admit(Pod.asking({resource: 1})), f"a pod that asks for one {resource} got no answer"
        )
        seconds = time.monotonic() - began
        reply, devices = pod.reply(), pod.devices(resource)
        self._tell(
            "pod_admitted",
            "\n".join(
                [
                    f"pod admitted in {seconds * 1000:.1f} ms: one {resource} is {', '.join(devices)}; its container "
                    + ("gets" if any(_reply_lines(reply)) else "gets nothing else"),
                    *_reply_lines(reply),
                ]
            ),
            {"resource": resource, "devices": list(devices), "seconds": round(seconds, 6), "reply": _reply_json(reply)},
        )

    async def _comes_back(self, kubelet: SimulatedKubelet, resources: Sequence[str]) -> None:
        before = {resource: sorted(kubelet.devices(resource)) for resource in resources}
        self._tell("kubelet_killed", "kubelet killed", {})
        await kubelet.restart(down=DOWNTIME)
        listening = kubelet.events.of(seen.KubeletStarted)[-1].time
        self._tell("kubelet_started", "kubelet listens again", {"profile": self._profile}, at=listening)
        for resource in resources:
            await self._in_time(
                kubelet.until(streaming=resource, timeout=self._deadline),
                f"{resource} did not come back after the kubelet's restart",
            )
            at = _registered_at(kubelet, resource, since=listening)
            after = sorted(kubelet.devices(resource))
            if not set(before[resource]) <= set(after):
                gone = ", ".join(sorted(set(before[resource]) - set(after)))
                raise ScenarioFailed(f"{resource} came back after the kubelet's restart without {gone}")
            self._tell(
                "registered_again",
                f"{resource} registered again, {(at - listening) * 1000:.1f} ms after the kubelet listened",
                {"resource": resource, "seconds": round(at - listening, 6), "devices": after},
                at=at,
            )

    async def _stops(self, kubelet: SimulatedKubelet, plugin: Process) -> None:
        asked = time.monotonic()
        self._exit_code = 0
        plugin.terminate()
        self._tell("stop_asked", "plugin asked to stop (SIGTERM)", {}, at=asked)
        code = await self._in_time(plugin.wait(), "the plugin did not end after SIGTERM")
        seconds = time.monotonic() - asked
        self._tell(
            "stopped",
            f"plugin ended {_exit(code)} after {seconds * 1000:.0f} ms",
            {"exit_code": code, "seconds": round(seconds, 6)},
        )
        if code != 0:
            raise ScenarioFailed(f"the plugin ended {_exit(code)} after SIGTERM; it must end with exit code 0")
        for directory in (kubelet.paths.device_plugin_dir, kubelet.paths.plugins_registry_dir):
            if not directory.is_dir():
                continue
            left = [path.name for path in directory.iterdir() if path.is_socket() and path.name != "kubelet.sock"]
            if left:
                raise ScenarioFailed(f"the plugin left sockets behind in {directory}: {', '.join(left)}")

    async def _in_time(self, step: Awaitable[_T], failure: str) -> _T:
        try:
            with anyio.fail_after(self._deadline):
                return await step
        except NotReached:
            pass
        except TimeoutError:
            pass
        raise ScenarioFailed(f"{failure} within {self._deadline:g} s")


def _in_group(group: ExceptionGroup[Exception]) -> ScenarioFailed | Misconfigured | None:
    for error in group.exceptions:
        found = _in_group(cast("ExceptionGroup[Exception]", error)) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, (ScenarioFailed, Misconfigured)):
            return found
    return None


def _registered_at(kubelet: SimulatedKubelet, resource: str, *, since: float) -> float:
    """Return when the plugin was heard of first: its Register, or what it told the plugin watcher."""
    heard = [
        *kubelet.events.of(seen.RegisterReceived, resource=resource),
        *kubelet.events.of(seen.PluginInfoReceived, resource=resource),
        *kubelet.events.of(seen.StreamOpened, resource=resource),
    ]
    return min(event.time for event in heard if event.time >= since)


async def _get(address: str) -> tuple[int, str]:
    """Ask the plugin whether it is ready; (0, "") while it cannot be reached."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    answer = b""
    with suppress(OSError):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b"GET /readyz HTTP/1.0\r\n\r\n")
            async for chunk in stream:
                answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split()
    return (int(words[1]) if len(words) > 1 else 0), body.decode(errors="replace")


def _why_not_ready(body: str) -> str:
    try:
        answer = json.loads(body)
        resources: dict[str, dict[str, object]] = answer.get("resources", {})
        backends: list[dict[str, object]] = answer.get("backends", [])
    except (ValueError, AttributeError):
        return "it never said that it is alive"
    told = [f"{held['class']}: {held['reason']}" for held in backends if held.get("reason")]
    told += [f"{name} is {held.get('state')} ({held.get('reason') or 'no reason'})" for name, held in resources.items()]
    return "; ".join(told) or "it has no resource, because no device was discovered"


def _reply_lines(reply: ContainerReply) -> list[str]:
    return [
        *(f"env {name}={value}" for name, value in reply.envs.items()),
        *(f"device {node.host_path} at {node.container_path}, {node.permissions}" for node in reply.devices),
        *(
            f"mount {mount.host_path} at {mount.container_path}, {'read-only' if mount.read_only else 'read-write'}"
            for mount in reply.mounts
        ),
        *(f"annotation {name}={value}" for name, value in reply.annotations.items()),
        *(f"CDI device {name}" for name in reply.cdi_devices),
    ]


def _reply_json(reply: ContainerReply) -> dict[str, object]:
    return {
        "env": dict(reply.envs),
        "device_nodes": [
            {"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions}
            for node in reply.devices
        ],
        "mounts": [
            {"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only}
            for mount in reply.mounts
        ],
        "annotations": dict(reply.annotations),
        "cdi_devices": list(reply.cdi_devices),
    }


def _exit(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
