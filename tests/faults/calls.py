"""Faults 41 to 52: unary calls that no kubelet would make, or not so, or not then.

They go over the kubelet's own connection to the plugin and change nothing in what it believes. An answer is None for
"ok" or the error as the kubelet would print it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from kdp_testkit.faults.base import FaultGroup
from kdp_testkit.patience import PATIENCE
from kdp_testkit.protocol import validation
from kdp_testkit.protocol.pods import ScenarioError
from kdp_testkit.protocol.wire import CallError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from kdp_testkit.protocol.pods import ContainerReply
    from kdp_testkit.protocol.wire import PluginConnection

_UNKNOWN = "no-such-device"


class CallFaults(FaultGroup):
    """Faults of unary calls."""

    async def allocate_wrong_ids(self, resource: str) -> dict[str, str | None]:
        """Fault 41: Allocate of an unknown, a repeated, an unhealthy and no id at all; return the answers by kind.

        On a node: a list that is outdated by one change. Kinds for which the list has no device are left out.

        A good plugin refuses unknown and unhealthy ids in a sentence that the user understands, and treats a repeated
        id as named once.
        """
        connection = self._process.client(resource).connection
        listed = self._kubelet.devices(resource).values()
        healthy = [device.id for device in listed if device.health == validation.HEALTHY]
        unhealthy = [device.id for device in listed if device.health != validation.HEALTHY]
        requests = {"unknown": [_UNKNOWN], "empty": list[str]()}
        if healthy:
            requests["duplicate"] = [healthy[0], healthy[0]]
        if unhealthy:
            requests["unhealthy"] = [unhealthy[0]]
        return {kind: await _answer(connection.allocate(ids)) for kind, ids in requests.items()}

    async def allocate_several(self, resource: str, *containers: Sequence[str]) -> list[ContainerReply]:
        """Fault 42: one Allocate for several containers.

        On a node: the API allows it, the kubelet always asks for one.

        A good plugin answers each container, in their order.

        Raises:
            CallError: The plugin refused.
        """
        return await self._process.client(resource).connection.allocate(*containers)

    async def allocate_in_parallel(
        self, resource: str, requests: Iterable[Sequence[str]]
    ) -> list[list[ContainerReply]]:
        """Fault 43: several Allocates at the same time; return the replies in the order of the requests.

        On a node: the re-allocation path of pod workers overlaps with admission (section 6.1).

        A good plugin answers each with its own devices.

        Raises:
            CallError: The plugin refused one.
        """
        connection = self._process.client(resource).connection
        replies: dict[int, list[ContainerReply]] = {}

        async def allocate(number: int, ids: Sequence[str]) -> None:
            replies[number] = await connection.allocate(ids)

        async with anyio.create_task_group() as tasks:
            for number, ids in enumerate(requests):
                tasks.start_soon(allocate, number, ids)
        return [replies[number] for number in sorted(replies)]

    async def cancel_allocate(self, resource: str, device_ids: Sequence[str], *, after: float = 0.05) -> bool:
        """Fault 44: Allocate is cancelled ``after`` so many seconds; return whether it was still in flight.

        On a node: the kubelet stops (1.37), or the pod is killed meanwhile.

        A good plugin cancels the hook, and answers the next Allocate as if nothing had been.
        """
        with anyio.move_on_after(after) as scope:
            await _answer(self._process.client(resource).connection.allocate(device_ids))
        return scope.cancelled_caught

    async def repeat_allocate(
        self, resource: str, device_ids: Sequence[str], *, times: int = 2
    ) -> list[ContainerReply]:
        """Fault 45: Allocate of the same ids, ``times`` times in a row; return the first container's reply of each.

        On a node: init containers hand their devices on, and nobody tells when devices come free (section 6.2).

        A good plugin answers each time the same.

        Raises:
            CallError: The plugin refused one.
        """
        connection = self._process.client(resource).connection
        return [(await connection.allocate(device_ids))[0] for _ in range(times)]

    async def allocate_removed(
        self,
        resource: str,
        device_id: str,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - a deadline for tests
    ) -> tuple[str | None, float]:
        """Fault 46: Allocate of an id as soon as a list omits it; return the answer and the seconds between.

        On a node: a pod's admission and a device's end cross each other.

        A good plugin refuses it with the reason: its calls and its lists come from one table.

        Args:
            resource: The resource.
            device_id: The device, which is listed as healthy; its end is up to the caller, meanwhile or before.
            timeout: Seconds to wait for its end.
        """

        def is_gone() -> bool:
            device = self._kubelet.devices(resource).get(device_id)
            return device is None or device.health != validation.HEALTHY

        await self._kubelet.until(is_gone, timeout=timeout)
        started = time.monotonic()
        answer = await _answer(self._process.client(resource).connection.allocate([device_id]))
        return answer, time.monotonic() - started

    async def allocate_during_list(
        self,
        resource: str,
        device_ids: Sequence[str],
        timeout: float = PATIENCE,  # noqa: ASYNC109 - a deadline for tests
    ) -> str | None:
        """Fault 47: Allocate while a list is being sent: nobody reads the stream, so a large one stays on its way.

        On a node: the kubelet writes its checkpoint before it reads the next list (section 5).

        A good plugin answers: a call waits for no stream.

        Raises:
            TimeoutError: It did not answer.
        """
        self._kubelet.pause_reading(resource)
        try:
            with anyio.fail_after(timeout):
                return await _answer(self._process.client(resource).connection.allocate(device_ids))
        finally:
            self._kubelet.resume_reading(resource)

    async def prefer_impossibly(self, resource: str) -> dict[str, tuple[str, ...] | str]:
        """Fault 48: GetPreferredAllocation with a must-include id that is not offered, size 0, and too large a size.

        On a node: a kubelet whose lists are older than the plugin's. An error would fail the pod (section 7).

        A good plugin answers with an empty or a partial list, never with an error.

        Returns:
            The preferred ids by kind; a text: the error.
        """
        connection = self._process.client(resource).connection
        ids = sorted(self._kubelet.devices(resource))
        requests: dict[str, tuple[list[str], list[str], int]] = {
            "must include what is not offered": (ids[1:], ids[:1], 1),
            "size 0": (ids, [], 0),
            "more than there are": (ids, [], len(ids) + 1),
        }
        answers: dict[str, tuple[str, ...] | str] = {}
        for kind, (available, must_include, size) in requests.items():
            try:
                answer = await connection.preferred(available, must_include, size)
            except CallError as failed:
                answers[kind] = str(failed)
            else:
                answers[kind] = answer[0] if answer else ()
        return answers

    async def pre_start_in_a_hurry(
        self, resource: str, device_ids: Sequence[str], *, deadline: float = 0.001
    ) -> str | None:
        """Fault 49: PreStartContainer with a deadline of a millisecond.

        On a node: the kubelet gives 30 s; a deadline that is over before the call arrives is one of a stalled node.

        A good plugin lets the call end, and answers the next one.
        """
        return await _answer(self._process.client(resource).connection.pre_start(device_ids, timeout=deadline))

    async def call_before_stream(self, resource: str, device_ids: Sequence[str]) -> str | None:
        """Fault 50: Allocate before any ListAndWatch; `dial_without_stream` must have kept the stream away.

        On a node: admission right after a kubelet's restart, with the devices of its checkpoint.

        A good plugin answers from its own table, which does not depend on anybody listening.

        Raises:
            ScenarioError: There is a stream.
        """
        if self._kubelet.streams(resource):
            raise ScenarioError(f"{resource} has a stream already; queue dial_without_stream() before it registers")
        return await _answer(self._process.client(resource).connection.allocate(device_ids))

    async def call_after_stream(self, connection: PluginConnection, device_ids: Sequence[str]) -> str | None:
        """Fault 51: Allocate on a connection whose stream has ended; `end_stream_only` returns one.

        On a node: a kubelet that has not noticed the end yet.

        A good plugin answers, or refuses in a way that ends neither its process nor the new registration.
        """
        return await _answer(connection.allocate(device_ids))

    async def call_unknown_method(self, resource: str, method: str = "Deallocate") -> str | None:
        """Fault 52: a method is called that the API does not have.

        On a node: a later kubelet that tries a call of a later API.

        A good plugin answers UNIMPLEMENTED.
        """
        return await _answer(self._process.client(resource).connection.call(method, b""))


async def _answer(call: Awaitable[object]) -> str | None:
    """Return a call's error as the kubelet would print it; None if there is none."""
    try:
        await call
    except CallError as failed:
        return str(failed)
    return None
