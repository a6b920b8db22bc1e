"""The RPCs that the kubelet calls: from wire values to the backend and back, and what each failure tells the pod.

Every call works on one immutable snapshot of the inventory. Whatever goes wrong inside becomes a status with one
sentence; no exception of a vendor reaches gRPC, which would send its text to the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import attrs
import grpc

from ..errors import (
    AllocationError,
    CdiWriteError,
    EditConflictError,
    HookTimeoutError,
    InvalidValueError,
    KdpError,
    sentence,
)
from ..model.backend import Allocation, PreferRequest
from ..model.devices import Health
from ..model.edits import ContainerEdits
from ..supervision.conditions import lets_allocate
from ..supervision.hooks import check_state
from . import wire
from .answers import Choices, code_of, preference_fault, preferred_ids, result_of
from .inventory import Cursor, Inventory, ListSnapshot
from .session import Contacted, GenerationAnswer, Registered, RegisterFailed, StreamClosed, StreamOpened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..concurrency.observable import Observable
    from ..hardware import Host
    from ..kubelet.list_guard import ListGuard
    from ..model.devices import Device
    from ..supervision.supervisor import Supervisor
    from .cdi import ResourceCdi
    from .held import HeldDevices
    from .options import ManagerOptions
    from .tracking.records import AllocationRecords

    _Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)

_Code = grpc.StatusCode

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

SLOW = 1.0
"""Seconds after which an Allocate is worth a log line: the kubelet admits no other pod meanwhile."""

ABORT_SECONDS = 0.3
"""Seconds to send the answers of calls that were cut short at the stop."""

FLUSH_SECONDS = 0.05
"""Seconds between the last answer and the end of the streams: both travel on one connection, and a client that reads
them together may see the end first and drop the answer."""

MARGIN = 0.5
"""Seconds before the kubelet's own deadline at which we answer, so that our sentence is the one it shows."""


class DevicePluginServicer:
    """Serves one generation of one resource.

    Args:
        generation: Goes into every event.
        changed: Changes with every new snapshot.
        guard: Keeps Lists away from Allocates.
        other_holder: Returns a device of an Allocate, and the pod that has it; see `Tracker.other_holder`.
        post: Takes the session's events.
        refused: Called for each container whose Allocate is refused: with the devices, the sentence that its pod
            shows, and whether a hook failed or was late; otherwise kdp or the backend said no.
    """

    def __init__(
        self,
        resource: str,
        generation: int,
        options: ManagerOptions,
        *,
        supervisor: Supervisor,
        inventory: Inventory,
        changed: Observable[None],
        host: Host,
        records: AllocationRecords,
        held: HeldDevices,
        guard: ListGuard,
        other_holder: Callable[[str, Sequence[str]], Awaitable[tuple[str, str] | None]],
        post: Callable[[GenerationAnswer], None],
        refused: Callable[[Sequence[str], str, bool], None],
        cdi: ResourceCdi | None = None,
        scrubs: bool = False,
    ) -> None:
        self._resource = resource
        self._generation = generation
        self._supervisor = supervisor
        self._inventory = inventory
        self._changed = changed
        self._host = host
        self._records = records
        self._held = held
        self._guard = guard
        self._other_holder = other_holder
        self._post = post
        self._refused = refused
        self._is_watcher = options.is_watcher
        self._counts = options.counts
        self._history = options.history
        self._choices = Choices()
        self._cdi = cdi
        self._scrubs = scrubs
        self._ended = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._drained = False
        hooks = supervisor.hooks
        self._asks_backend = hooks.overridden("allocate")
        self.options = wire.PluginOptions(
            pre_start_required=scrubs or hooks.overridden("prepare_container"),
            preferred_allocation=hooks.overridden("prefer")
            or hooks.overridden("counters")
            or supervisor.preferences is not None,
        )

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the services for a gRPC server."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = dict(
            [
                self._unary("GetDevicePluginOptions", self._options, wire.decode_nothing, wire.encode_options),
                self._unary("GetPreferredAllocation", self._prefer, wire.decode_prefer, wire.encode_prefer),
                self._unary("Allocate", self._allocate, wire.decode_allocate, wire.encode_allocate),
                self._unary("PreStartContainer", self._pre_start, wire.decode_pre_start, wire.encode_nothing),
                # No serializer: the inventory hands out bytes that are ready to be sent.
                ("ListAndWatch", grpc.unary_stream_rpc_method_handler(self._list_and_watch, wire.decode_nothing)),
            ]
        )
        services = [grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)]
        if self._is_watcher:
            from ..kubelet.plugin_watcher import Registration  # late: few plugins wait for the watcher

            registration = Registration(
                type="DevicePlugin",
                name=self._resource,
                versions=(wire.API_VERSION,),
                notified=self._notified,
                asked=lambda: self._post(Contacted(self._generation)),
            )
            services.append(registration.handler())
        return services

    def end_streams(self) -> None:
        """End all ListAndWatch streams, in good order and without another list (contract section 11)."""
        self._ended = True
        self._changed.set(None)

    async def settle(self, seconds: float) -> None:
        """Wait until no call is in flight; after so many seconds the rest are answered that the plugin is stopping.

        Comes before `end_streams`: when its stream ends the kubelet closes the connection, and with it every call that
        still waits for its answer.
        """
        if not self._calls:
            return
        await asyncio.wait(tuple(self._calls), timeout=seconds)
        self._drained = True
        for task in tuple(self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(tuple(self._calls), timeout=ABORT_SECONDS)
        await asyncio.sleep(FLUSH_SECONDS)

    def _unary(
        self,
        method: str,
        answer: Callable[[_Request, _Context], Awaitable[_Reply]],
        decode: Callable[[bytes], _Request],
        encode: Callable[[_Reply], bytes],
    ) -> tuple[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return a method that is counted: `settle` waits for a call of it, and a failure becomes a sentence."""

        async def call(request: _Request, context: _Context) -> _Reply:
            task = asyncio.current_task()
            assert task is not None
            began, code = time.monotonic(), _Code.CANCELLED
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)  # when the answer is sent, not when it is known
            try:
                reply = await answer(request, context)
                code = _Code.OK
                return reply
            except asyncio.CancelledError:
                if not self._drained:
                    raise  # the kubelet has lost interest
                task.uncancel()
                code = _Code.UNAVAILABLE
                return await _abort(context, code, "plugin is stopping")
            except Exception as error:
                if not isinstance(error, KdpError):
                    logger.exception("%s: internal error in a call of the kubelet", self._resource)
                code = code_of(error)
                return await _abort(context, code, sentence(error))
            finally:
                self._counts.called(method, self._resource, result_of(code), time.monotonic() - began)

        return method, grpc.unary_unary_rpc_method_handler(call, decode, encode)

    async def _list_and_watch(self, _: None, context: _Context) -> None:
        self._post(StreamOpened(self._generation))
        self._records.doubt(self._resource)  # before the kubelet has a list, so before its first Allocate
        cursor = Cursor()
        try:
            while not self._ended:
                version = self._changed.version
                step = self._inventory.next(cursor, time.monotonic())
                if isinstance(step, ListSnapshot):
                    cursor.version, cursor.sent_at = step.version, time.monotonic()
                    # Waits while the kubelet does not read: meanwhile newer lists replace each other unsent.
                    message = self._inventory.message
                    await context.write(message)
                    self._counts.sent(self._resource, len(message))
                    del message  # a list that is held is copied before its next change
                elif step is not None:
                    await asyncio.sleep(step)
                else:
                    await self._changed.after(version)
        finally:
            self._records.doubt(self._resource)
            self._post(StreamClosed(self._generation))

    async def _options(self, _: None, context: _Context) -> wire.PluginOptions:
        return self.options

    async def _allocate(self, requests: Sequence[Sequence[str]], context: _Context) -> list[wire.ContainerReply]:
        call = asyncio.current_task()
        assert call is not None
        self._guard.hold(call)
        replies: list[wire.ContainerReply] = []
        for ids in requests:
            try:
                replies.append(await self._allocate_container(ids))
            except Exception as error:
                self._refused(sorted(set(ids)), sentence(error), result_of(code_of(error)) == "failed")
                raise
        return replies

    async def _allocate_container(self, ids: Sequence[str]) -> wire.ContainerReply:
        started = time.monotonic()
        until = started + self._supervisor.deadlines.allocate
        wanted = sorted(set(ids))  # the kubelet's order is random and means nothing
        # First: from here on, a device that must be scrubbed counts as given back.
        if (found := await self._other_holder(self._resource, wanted)) is not None:
            device_id, pod = found
            raise AllocationError(
                f"{self._resource}: device {device_id} is held by {pod}, and the kubelet gave it to a second pod "
                "(kubernetes/kubernetes#137534); delete this pod, and the next one gets another device"
            )
        async with self._records.allocating(self._resource, wanted, until=until) as allocate:
            if self._held.is_outdated:
                await self._held.look()
            allocation = Allocation(
                resource=self._resource,
                devices=self._healthy(wanted),
                deadline=until,
                joined_env=self._supervisor.backend.joined_env,
                shared_with=self._records.shared_with(self._resource, wanted),
            )
            self._check_counters(allocation)
            await allocate.intend()
            reply = await self._reply(allocation)
            named = {node.host_path for node in reply.devices}
            await allocate.give(allocation, self._held.given(self._supervisor, self._resource, allocation, named))
        if self._history is not None:
            why = self._choices.why(wanted, asks=self.options.preferred_allocation)
            self._history.add("allocated", self._resource, why, wanted)
        took = time.monotonic() - started
        if logger.isEnabledFor(logging.DEBUG):
            text = f"Allocate of {', '.join(wanted)} took {took * 1000:.1f} ms"
            logger.debug("%s: %s", self._resource, text, extra={"resource": self._resource})
        if took > SLOW:
            logger.warning("%s: Allocate took %.1f s; no other pod is admitted meanwhile", self._resource, took)
        return reply

    def _check_counters(self, allocation: Allocation) -> None:
        """Refuse devices of which the kubelet does not know yet that others leave nothing of what they share."""
        if not any(device.consumes for device in allocation):
            return
        supervisor = self._supervisor
        held = self._records.consumption(supervisor.backend)
        for device in allocation:
            if found := supervisor.shortages([device], held):
                raise AllocationError(f"{self._resource}: device {device.id}: {found[device.id].reason}")
            held[supervisor.device_of(device.id)] = device.consumes

    async def _reply(self, allocation: Allocation) -> wire.ContainerReply:
        if self._asks_backend:
            limit = max(0.0, allocation.deadline - time.monotonic())
            reply: wire.ContainerReply = await self._supervisor.call(
                "allocate", allocation, deadline=limit, then=functools.partial(self._check_and_render, allocation)
            )
            return reply
        try:
            edits = allocation.edits()
        except EditConflictError as error:
            raise EditConflictError(f"{self._resource}: {error}") from error
        try:
            return self._render(allocation, edits)
        except InvalidValueError as error:
            raise AllocationError(f"{self._resource}: {error}") from error

    def _check_and_render(self, allocation: Allocation, edits: Any) -> wire.ContainerReply:
        """Check and render what ``allocate`` returned, and check the state that it left. Runs in the hook's thread."""
        check_state(allocation.state)
        if not isinstance(edits, ContainerEdits):
            raise InvalidValueError(f"it returned {edits!r}: must be kdp.ContainerEdits")
        return self._render(allocation, edits)

    def _render(self, allocation: Allocation, edits: ContainerEdits) -> wire.ContainerReply:
        if self._cdi is None:
            return wire.render(edits, self._host)
        try:
            return self._cdi.reply(allocation, edits)
        except CdiWriteError as error:
            raise AllocationError(f"{self._resource}: {error}") from error

    @property
    def _table(self) -> Mapping[str, Device]:
        snapshot = self._inventory.snapshot
        return snapshot.devices if snapshot else {}

    def _known(self, ids: Sequence[str]) -> tuple[Device, ...]:
        if not ids:
            raise InvalidValueError(f"{self._resource}: the request names no device")
        table = self._table
        for device_id in ids:
            if device_id not in table:
                raise InvalidValueError(
                    f"{self._resource} has no device {device_id!r}; the kubelet's list may be outdated"
                )
        return tuple([table[device_id] for device_id in ids])

    def _healthy(self, ids: Sequence[str]) -> tuple[Device, ...]:
        devices = self._known(ids)
        if self._scrubs:  # the start of the container waits for that, and not this
            devices = tuple(
                attrs.evolve(device, health=Health.healthy()) if lets_allocate(device.health.conditions) else device
                for device in devices
            )
        for device in devices:
            if not device.health.is_healthy:
                raise AllocationError(f"{self._resource}: device {device.id} is unhealthy: {device.health.reason}")
            if (obstacle := self._held.obstacle(self._resource, device.id)) is not None:
                raise AllocationError(f"{self._resource}: device {device.id} {obstacle}")
        return devices

    # An error would fail the pod (contract section 7), so nothing here raises but a cancellation.
    async def _prefer(self, queries: Sequence[wire.PreferQuery], context: _Context) -> list[Sequence[str]]:
        return [await self._prefer_container(query) for query in queries]

    async def _prefer_container(self, query: wire.PreferQuery) -> Sequence[str]:
        if not self.options.preferred_allocation:
            return ()
        try:
            table = self._table
            request = PreferRequest(
                resource=self._resource,
                available=self._left(tuple(table[i] for i in query.available if i in table), query),
                must_include=tuple(table[i] for i in query.must_include if i in table),
                size=query.size,
            )
            ids, what = await self._preferred(request)
            fault = f"{what} {wrong}" if what and (wrong := preference_fault(ids, query)) else None
            if self._history is not None and ids and fault is None:
                self._choices.preferred(ids, what)
        except KdpError as error:
            ids, fault = (), sentence(error)
        except Exception as error:  # any error would fail the pod, even one of kdp
            logger.exception("%s: internal error while choosing devices", self._resource)
            ids, fault = (), sentence(error)
        if fault is not None:
            logger.warning("%s: no preference: %s", self._resource, fault)
            return ()
        return ids

    def _left(self, devices: tuple[Device, ...], query: wire.PreferQuery) -> tuple[Device, ...]:
        """Return the devices for which enough of their counters is left, if they suffice.

        A container gets its resources one after another, and the kubelet's list is older than the first Allocate.
        """
        if not any(device.consumes for device in devices):
            return devices
        short = self._supervisor.shortages(devices, self._records.consumption(self._supervisor.backend))
        left = tuple(device for device in devices if device.id not in short or device.id in query.must_include)
        return left if len(left) >= query.size else devices

    async def _preferred(self, request: PreferRequest) -> tuple[Sequence[str], str]:
        """Return the ids to prefer, and who says so: the hook, or where it has no opinion the policy."""
        supervisor = self._supervisor
        if supervisor.hooks.overridden("prefer"):
            ids = await supervisor.call("prefer", request, deadline=supervisor.deadlines.prefer, then=preferred_ids)
            if ids is not None:
                return ids, "prefer()"
        if supervisor.preferences is None:
            must = [device.id for device in request.must_include]
            others = [device.id for device in request.available if device.id not in must]
            ids = [*must, *others][: request.size]
            return (ids, "what counters leave") if len(ids) == request.size else ((), "")
        return supervisor.preferences.answer(request), "the policy"

    async def _pre_start(self, ids: Sequence[str], context: _Context) -> None:
        if not self.options.pre_start_required:
            return
        limit = self._supervisor.deadlines.prepare_container
        remaining: float | None = context.time_remaining()
        if remaining is not None:  # pyright: ignore[reportUnnecessaryComparison] - without a deadline it is
            limit = max(0.0, min(limit, remaining - MARGIN))
        until, wanted = time.monotonic() + limit, sorted(set(ids))
        if self._scrubs:
            await self._records.scrubbed(self._resource, ids, until=until)
            await self._records.start(self._resource, ids)
            if not self._supervisor.hooks.overridden("prepare_container"):
                return
        with anyio.move_on_after(until - time.monotonic()):
            await self._records.until_stated(self._resource, wanted)
        record = await self._records.newest(self._resource, ids)
        limit = max(0.0, until - time.monotonic())
        if not limit and not self._supervisor.hooks.is_running("prepare_container"):  # it would be blamed for no time
            text = "no time was left for prepare_container(); the kubelet starts the container again"
            raise HookTimeoutError(f"{self._resource}: device {', '.join(wanted)}: {text}")
        allocation = Allocation(
            resource=self._resource,
            devices=self._known(wanted),
            deadline=until,
            state={} if record is None else check_state(record.state),
            joined_env=self._supervisor.backend.joined_env,
            shared_with=self._records.shared_with(self._resource, ids),
        )
        try:
            await self._supervisor.call(
                "prepare_container", allocation, deadline=limit, then=lambda _: check_state(allocation.state)
            )
        except (HookTimeoutError, asyncio.CancelledError):  # the hook's thread may still write to it
            returned = functools.partial(self._supervisor.hooks.idle, "prepare_container", deadline=None)
            self._records.keep_state_late(record, allocation, returned)
            raise
        except KdpError:
            with contextlib.suppress(InvalidValueError):
                await self._records.keep_state(record, allocation)  # `released` must undo its effect
            raise
        await self._records.keep_state(record, allocation)

    def _notified(self, problem: str | None) -> None:
        """Take what the plugin watcher has made of us."""
        if problem is None:
            self._post(Registered(self._generation))
        else:
            permanent = "is invalid" in problem or "not among plugin supported versions" in problem
            reason = f"the kubelet's plugin watcher did not register the plugin: {problem}"
            self._post(RegisterFailed(self._generation, reason, permanent=permanent))


async def _abort(context: _Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError  # abort raises, but its type does not say so
