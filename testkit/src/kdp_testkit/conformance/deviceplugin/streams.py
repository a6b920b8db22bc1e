"""Checks 14 to 16: what a plugin does when its stream ends or never comes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ... import events
from ...faults import RegisterFault
from ..checks import KUBELET_SOCK, Checks
from ..scene import plural

if TYPE_CHECKING:
    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()


def _has_lists(scene: PluginScene, count: int) -> bool:
    return len(scene.lists) >= count and scene.kubelet.streams(scene.resource) > 0


@CHECKS.add(
    14,
    "a lost stream leads to a new registration",
    expected="the stream is cancelled, the socket stays: Register again within 1 s, with another socket on 1.37",
    rule=(
        "section 5: when ListAndWatch ends the kubelet never calls it again; all devices stay unhealthy until a "
        "new Register"
    ),
    cure="notice that the last stream has ended, and register again with a new socket, with growing pauses",
    routes=KUBELET_SOCK,
)
async def _lost_stream(case: Case) -> str:
    async with case.connected() as scene:
        known, before = len(scene.lists), len(scene.registers)
        scene.kubelet.drop_stream(scene.resource)
        took = await scene.until(lambda: len(scene.registers) > before, case.limit(1.0), "no new Register came")
        await scene.connected(lists=known)
    return f"Register {took * 1000:.0f} ms after the stream ended"


@CHECKS.add(
    15,
    "a stream that never comes leads to a new registration",
    expected="Register answered ok, ListAndWatch never called: a new Register after about 10 s",
    rule=(
        "section 2.1: a successful Register does not prove a connection, but an open ListAndWatch stream does; "
        "section 12 (B6)"
    ),
    cure="after Register wait some 10 s for the stream, then begin anew with a new socket",
    routes=KUBELET_SOCK,
    lasts=10.0,
)
async def _no_stream(case: Case) -> str:
    async with case.node() as scene:
        scene.kubelet.faults.register(RegisterFault(stream=False, resource=scene.resource))
        await scene.start()
        await scene.until(lambda: scene.registers, case.patience_for_connecting, "no Register came")
        took = await scene.until(
            lambda: len(scene.registers) > 1, case.limit(4.5), "no second Register came although no stream was opened"
        )
        first, second = scene.registers[:2]
        scene.require(
            first.endpoint != second.endpoint, f"the second Register named the same socket {first.endpoint!r}"
        )
        await scene.connected()
    return f"a new Register {took:.1f} s after the first"


@CHECKS.add(
    16,
    "pauses grow while streams end at once",
    expected="five times Register ok and the stream closed at once: five new registrations, further and further apart",
    rule="section 2.5: on kubelets up to 1.36 a stream that ends shortly after Register is normal; every registration "
    "costs the kubelet a connection, so pause longer each time",
    cure="register again with exponential pauses, and reset them only when a stream has lived for a while",
    routes=KUBELET_SOCK,
)
async def _flapping(case: Case) -> str:
    async with case.node() as scene:
        await scene.start()
        for number in range(1, 6):
            await scene.until(
                # With its first list: of a stream that is closed before, the plugin need not know.
                partial(_has_lists, scene, number),
                case.limit(3.0) if number > 1 else case.patience_for_connecting,
                f"stream {number} brought no list",
            )
            scene.kubelet.drop_stream(scene.resource)
        await scene.until(
            lambda: len(scene.lists) >= 6 and scene.kubelet.streams(scene.resource),
            case.limit(3.0),
            "after the fifth lost stream there was no new one",
        )
        ends = scene.kubelet.events.of(events.StreamEnded, resource=scene.resource)
        pauses = [
            min(register.time for register in scene.registers if register.time > end.time) - end.time
            for end in ends[:5]
        ]
        listed = ", ".join(f"{pause * 1000:.0f}" for pause in pauses)
        grows = sum(pauses[3:]) > 1.5 * sum(pauses[:2])
        scene.require(grows or min(pauses) >= 0.9, f"the pauses were {listed} ms: they do not grow")
    return f"{plural(len(pauses), 'new registration')} after {listed} ms"
