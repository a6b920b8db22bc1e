"""`Replay`: plays the kubelet's side of a recording to a plugin and compares what the plugin says.

The kubelet's calls come in the recorded order, with the recorded ids; a kubelet that ended ends, and comes back. Where
the recorded plugin went away and came back, this one is stopped and started again. The only recorded time that is
played is the kubelet's absence, up to a second; each answer has a deadline instead.

What counts as the same is in `compare`. Not compared are states in between: a list must come, lists before it do not
matter. A Register that no kubelet answered is left out: whether a plugin tries in vain is a matter of milliseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import anyio
import attrs

from kdp.kubelet.paths import KubeletPaths

from ..protocol.listener import KubeletSocket, wipe
from ..protocol.registry import Refusal, RegistryServer, joined_path
from ..protocol.validation import PRE_START_TIMEOUT
from ..protocol.wire import (
    CallError,
    DialError,
    ListedDevice,
    PluginConnection,
    PluginOptions,
    PluginStream,
    decode_devices,
    settle,
)
from .compare import (
    answer_differences,
    error_differences,
    goes_on_without,
    ids_of,
    is_compared,
    is_kubelets_end,
    is_lost_connection,
    list_differences,
    played,
    register_differences,
)
from .redaction import Bindings
from .report import Report, Step, Verdict
from .transcript import Entry, Recording, decode, encode

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .plugins import Running, Start

SETTLE_SECONDS = 1.0
"""How long a list that is not the recorded one may still be replaced by a better one, where no hardware must change."""

DOWNTIME = 1.0
"""Seconds for which the kubelet is away at most, however long the recorded one was."""

OnList = Callable[[str, Sequence[ListedDevice]], Awaitable[None] | None]


class _Hopeless(Exception):
    """Nothing more can be played: the plugin has ended, or was never heard of."""


@attrs.define(eq=False)
class _Pending:
    """A Register that waits for its answer."""

    version: str
    endpoint: str
    resource: str
    options: PluginOptions
    is_taken: bool = False
    answer: Refusal | None = None
    answered: anyio.Event = attrs.field(factory=anyio.Event)

    def reply(self, refusal: Refusal | None = None) -> None:
        self.answer = refusal
        self.answered.set()


@attrs.define(eq=False)
class _Stream:
    """A ListAndWatch: the newest list, and its end."""

    stream: PluginStream
    newest: dict[str, Any] | None = None
    is_first: bool = True
    is_hopeless: bool = False
    ending: tuple[str, str] | None = None


@attrs.define(eq=False)
class _Call:
    """A unary call: its answer or its error, when it is there."""

    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    answer: bytes | None = None
    error: tuple[str, str] | None = None

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.error is not None


class Replay:
    """One replay of one recording; `run` does all of it.

    Args:
        recording: What to play.
        start: Starts the plugin.
        deadline: Seconds for each thing that the plugin must do.
        lists: ``all``: every list must come; ``first``: only the first one of each stream, where no hardware changes.
        on_list: Called with the resource and the devices before a list is awaited that is not the first of its stream:
            it makes the hardware so.
    """

    def __init__(
        self,
        recording: Recording,
        start: Start,
        *,
        deadline: float = 10.0,
        lists: Literal["all", "first"] = "all",
        on_list: OnList | None = None,
    ) -> None:
        self._recording = recording
        self._entries = played(recording.entries)
        self._start = start
        self._deadline = deadline
        self._lists = lists
        self._on_list = on_list
        self._bindings = Bindings(recording.redacted)
        self._steps: list[Step] = []
        self._calls_of = {entry.call: entry for entry in self._entries if entry.what == "call"}
        self._said = ""
        self._news = anyio.Event()
        self._plugin: Running | None = None
        self._was_heard = False
        self._pending: list[_Pending] = []
        self._registers: dict[int, _Pending] = {}
        self._connections: dict[int, PluginConnection] = {}
        self._streams: dict[int, _Stream] = {}
        self._unary: dict[int, _Call] = {}
        self._paths: KubeletPaths
        self._socket: KubeletSocket
        self._tasks: TaskGroup
        self._stack: AsyncExitStack

    async def run(self) -> Report:
        """Play it.

        Returns:
            What came of it. Nothing that was started is left.

        Raises:
            ConfigurationError: The plugin cannot be started.
        """
        problem = ""
        with TemporaryDirectory(prefix="kdp-", ignore_cleanup_errors=True) as root:
            self._paths = KubeletPaths.simulated(root)
            for directory in (self._paths.device_plugin_dir, self._paths.plugins_registry_dir):
                directory.mkdir(mode=0o750)
            self._socket = KubeletSocket(self._paths.kubelet_socket, "replay")
            registry = RegistryServer(self._socket.address, self._register)
            await registry.start()
            failure: Exception | None = None
            try:
                async with anyio.create_task_group() as self._tasks:
                    try:
                        async with AsyncExitStack() as self._stack:
                            try:
                                problem = await self._play()
                            finally:
                                await self._stop()  # if this is cancelled, too, the plugin is killed at once
                    except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                        failure = error
                    finally:
                        self._vanish()
                        self._tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await registry.stop()
                    for connection in self._connections.values():
                        await connection.close()
                    await settle()
            if failure is not None:
                raise failure
        return Report(path=self._recording.path, steps=self._steps, problem=problem, said=self._said)

    async def _play(self) -> str:
        for position, entry in enumerate(self._entries):
            try:
                await self._do(position, entry)
            except _Hopeless as error:
                self._steps += [
                    self._step(left, "not reached") for left in self._entries[position:] if is_compared(left)
                ]
                return f"{error}; played up to line {entry.line} of the recording"
        known = {entry.resource for entry in self._entries if entry.method == "Register"}
        for resource in sorted({pending.resource for pending in self._pending} - known):
            self._steps.append(
                Step(
                    line=0,
                    time=self._entries[-1].time,
                    what=f"Register {resource}",
                    verdict="different",
                    differences=("not recorded, now it registers",),
                )
            )
        return ""

    async def _do(self, position: int, entry: Entry) -> None:
        match entry.what:
            case "kubelet" if entry.state == "listening":
                await self._stay_away(position)
                self._listen()
            case "kubelet":
                self._vanish()
            case "plugin" if entry.state == "ended":
                await self._end_plugin()
            case "call" if entry.side == "plugin":
                await self._take_register(entry)
            case "call":
                await self._begin(entry)
            case "answer" if entry.side == "kubelet":
                if entry.call in self._registers:
                    self._registers[entry.call].reply()
            case "answer":
                await self._compare_answer(entry)
            case "end" if entry.method == "Register":
                if entry.call in self._registers:
                    self._registers[entry.call].reply(Refusal(entry.detail, entry.code))
            case "end" if entry.method == "ListAndWatch":
                await self._end_stream(position, entry)
            case "end":
                await self._end_call(entry)
            case _:
                pass

    # The plugin ------------------------------------------------------------------------------------------------------

    async def _ensure_plugin(self) -> None:
        if self._plugin is None:
            self._plugin = await self._stack.enter_async_context(self._start(self._paths, self._wake))

    async def _end_plugin(self) -> None:
        await self._stop()
        await self._stack.aclose()

    async def _stop(self) -> None:
        """Stop the plugin, if it runs, and judge how it ends."""
        if self._plugin is None:
            return
        plugin, self._plugin = self._plugin, None
        ended_before = plugin.ending() is not None
        complaint = await plugin.stop()
        self._said = plugin.said()
        if not ended_before:
            self._steps.append(
                Step(
                    line=0,
                    time=self._entries[-1].time if self._entries else 0.0,
                    what="stop",
                    verdict="different" if complaint else "same",
                    differences=(complaint,) if complaint else (),
                )
            )

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until something holds.

        Raises:
            _Hopeless: The plugin ended meanwhile.
        """
        with anyio.move_on_after(seconds):
            while not condition():
                if self._plugin is not None and (ending := self._plugin.ending()) is not None:
                    raise _Hopeless(ending)
                await self._news.wait()
        return bool(condition())

    # The kubelet -----------------------------------------------------------------------------------------------------

    async def _stay_away(self, position: int) -> None:
        """Be down as long as the recorded kubelet was, up to a limit: a plugin may need to notice."""
        before = self._entries[:position]
        gone = [entry.time for entry in before if entry.what == "kubelet" and entry.state == "gone"]
        if gone:
            await anyio.sleep(min(self._entries[position].time - gone[-1], DOWNTIME))

    def _listen(self) -> None:
        self._vanish()
        wipe(self._paths.device_plugin_dir)
        self._socket.listen(self._tasks)

    def _vanish(self) -> None:
        """End as a killed kubelet does: connections break, kubelet.sock stays as a dead file."""
        if not self._socket.vanish():
            return
        for call in self._unary.values():
            call.scope.cancel()
        for connection in self._connections.values():
            connection.sever()
        for stream in self._streams.values():
            stream.stream.cancel()

    async def _register(self, version: str, endpoint: str, resource: str, options: PluginOptions) -> None:
        pending = _Pending(version, endpoint, resource, options)
        self._pending.append(pending)
        self._was_heard = True
        self._wake()
        try:
            await pending.answered.wait()
        finally:
            if pending in self._pending:
                self._pending.remove(pending)
        if pending.answer is not None:
            raise pending.answer

    async def _take_register(self, entry: Entry) -> None:
        await self._ensure_plugin()

        def arrived() -> _Pending | None:
            return next((p for p in self._pending if p.resource == entry.resource and not p.is_taken), None)

        if not await self._until(arrived, self._deadline):
            others = ", ".join(sorted({pending.resource for pending in self._pending if not pending.is_taken}))
            instead = f"; it registers {others} instead" if others else ""
            if not self._was_heard:
                raise _Hopeless(f"the plugin did not register within {self._deadline:g} s")
            self._judge(entry, [f"the plugin did not register within {self._deadline:g} s{instead}"])
            return
        pending = arrived()
        assert pending is not None
        pending.is_taken = True
        self._registers[entry.call] = pending
        differences = register_differences(
            entry.content.get("message", {}),
            pending.version,
            (pending.options.pre_start_required, pending.options.preferred_allocation_available),
        )
        endpoint = joined_path(self._paths.device_plugin_dir, pending.endpoint)
        connection = PluginConnection(endpoint)
        self._connections[entry.call] = connection
        if any(other.registration == entry.call and other.what == "call" and other != entry for other in self._entries):
            try:
                await connection.dial(self._deadline)
            except DialError as error:
                del self._connections[entry.call]
                differences.append(f"its socket cannot be reached: {error}")
        self._judge(entry, differences)

    # The kubelet's calls ---------------------------------------------------------------------------------------------

    async def _begin(self, entry: Entry) -> None:
        connection = self._connections.get(entry.registration)
        if connection is None:
            return
        if entry.method == "ListAndWatch":
            with suppress(CallError):
                self._streams[entry.call] = stream = _Stream(connection.watch())
                self._tasks.start_soon(self._read, stream)
            return
        self._unary[entry.call] = call = _Call()
        self._tasks.start_soon(self._call, connection, entry, call)

    async def _read(self, stream: _Stream) -> None:
        while (message := await stream.stream.read()) is not None:
            stream.newest = decode("ListAndWatch", message[1], answer=True)
            self._wake()
        stream.ending = stream.stream.ending
        self._wake()

    async def _call(self, connection: PluginConnection, entry: Entry, call: _Call) -> None:
        timeout = PRE_START_TIMEOUT if entry.method == "PreStartContainer" else None
        with call.scope:
            try:
                payload = encode(entry.method, entry.content, answer=False)
                call.answer = await connection.call(entry.method, payload, timeout=timeout)
            except CallError as error:
                call.error = (error.code, error.detail)
            self._wake()

    async def _compare_answer(self, entry: Entry) -> None:
        if entry.method == "ListAndWatch":
            await self._compare_list(entry)
            return
        call = self._unary.get(entry.call)
        if call is None:
            self._steps.append(self._step(entry, "not reached"))
        elif not await self._until(lambda: call.is_over, self._deadline):
            call.scope.cancel()
            self._judge(entry, [f"recorded an answer, now none came within {self._deadline:g} s"])
        elif call.answer is None:
            assert call.error is not None
            self._judge(entry, [f"recorded an answer, now the error {call.error[0]}: {call.error[1]}"])
        else:
            now = decode(entry.method, call.answer, answer=True)
            self._judge(entry, answer_differences(entry.method, entry.content, now, self._bindings))

    async def _compare_list(self, entry: Entry) -> None:
        stream = self._streams.get(entry.call)
        if stream is None:
            self._steps.append(self._step(entry, "not reached"))
            return
        is_first, stream.is_first = stream.is_first, False
        if not is_first:
            if self._lists == "first":
                return
            if self._on_list is not None:
                payload = encode(entry.method, entry.content, answer=True)
                done = self._on_list(entry.resource, decode_devices(payload))
                if inspect.isawaitable(done):
                    await done

        def is_there() -> bool:
            return stream.ending is not None or not list_differences(entry.content, stream.newest)

        if is_first:
            await self._until(lambda: stream.ending is not None or stream.newest is not None, self._deadline)
        await self._until(is_there, SETTLE_SECONDS if is_first or stream.is_hopeless else self._deadline)
        differences = list_differences(entry.content, stream.newest)
        if differences:
            stream.is_hopeless = True
            if stream.ending is not None:
                differences.append(f"the stream ended: {stream.ending[0]}: {stream.ending[1]}")
        self._judge(entry, differences)

    async def _end_stream(self, position: int, entry: Entry) -> None:
        stream = self._streams.get(entry.call)
        if stream is None or stream.ending is not None:
            return
        if entry.side == "kubelet":
            # The kubelet's own end: its connections go first, and the plugin must not find it listening in between.
            if is_kubelets_end(self._entries, position):
                self._vanish()
            stream.stream.cancel()
        elif goes_on_without(self._entries, position):
            if not await self._until(lambda: stream.ending is not None, SETTLE_SECONDS):
                self._judge(entry, ["recorded the end of the stream by the plugin, now it stays open"])
        else:
            await self._end_plugin()

    async def _end_call(self, entry: Entry) -> None:
        call = self._unary.get(entry.call)
        if call is None:
            if entry.side == "plugin":
                self._steps.append(self._step(entry, "not reached"))
        elif entry.side == "kubelet":
            call.scope.cancel()
        elif is_lost_connection(entry):
            call.scope.cancel()  # the recorded plugin died of something else
        elif not await self._until(lambda: call.is_over, self._deadline):
            call.scope.cancel()
            self._judge(entry, [f"recorded the error {entry.code}, now no answer came within {self._deadline:g} s"])
        else:
            self._judge(entry, error_differences(entry.code, entry.detail, call.error, self._bindings))

    # Verdicts --------------------------------------------------------------------------------------------------------

    def _judge(self, entry: Entry, differences: Sequence[str]) -> None:
        self._steps.append(self._step(entry, "different" if differences else "same", differences))

    def _step(self, entry: Entry, verdict: Verdict, differences: Sequence[str] = ()) -> Step:
        what = f"{entry.method} {entry.resource}"
        ids = ids_of(self._calls_of[entry.call].content.get("message", {}))
        return Step(
            line=entry.line,
            time=entry.time,
            what=f"{what} ({ids})" if ids else what,
            verdict=verdict,
            differences=tuple(differences),
        )
