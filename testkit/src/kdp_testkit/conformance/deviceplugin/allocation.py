"""Checks 33 to 47: what Allocate answers, and what is left of it on the host."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import anyio
import attrs

from ... import events
from ...protocol.pods import AdmittedPod, Container, ContainerReply, Pod
from ...protocol.wire import CallError
from ..checks import KUBELET_SOCK, Checks, NotApplicable
from ..scene import ids, plural
from .replies import differences, missing_artefacts, named, problems_of, shown, varying, without_order
from .subject import SECRET, Staging

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .scene import Case, PluginScene

CHECKS: Checks[Case] = Checks()

_FAR = 30.0
"""Seconds after which a call counts as never answered."""


async def allocate(scene: PluginScene, *device_ids: Iterable[str], within: float = _FAR) -> list[ContainerReply]:
    """Call Allocate with one container request for each argument; an answer that never comes is a failure."""
    try:
        with anyio.fail_after(within):
            return await scene.client.allocate(*[list(request) for request in device_ids])
    except TimeoutError:
        raise scene.failed(f"Allocate was not answered within {within:g} s") from None


async def _twice(scene: PluginScene, device: str) -> tuple[ContainerReply, frozenset[str]]:
    """Allocate a device twice; return the reply, and the variables that each reply has with another value."""
    [one] = await allocate(scene, [device])
    [again] = await allocate(scene, [device])
    return one, varying(one, again)


async def _refusal(scene: PluginScene, device_ids: Iterable[str]) -> CallError | None:
    try:
        await allocate(scene, device_ids)
    except CallError as error:
        return error
    return None


async def _still_works(scene: PluginScene, after: str, streams: int = 1) -> None:
    """Require that the process, the stream and Allocate are as before."""
    scene.check_alive()
    scene.require(scene.kubelet.streams(scene.resource) == 1, f"after {after} the stream had ended")
    scene.require(scene.streams_opened == streams, f"after {after} the plugin registered anew")
    if scene.healthy:
        [reply] = await allocate(scene, scene.healthy[:1])
        scene.require(not problems_of(reply), f"after {after} the next Allocate answered {reply}")


@CHECKS.add(
    33,
    "Allocate of one device gets a valid reply",
    expected="exactly one container response within 1 s, absolute paths, permissions of r, w, m",
    rule="section 6.4: the kubelet validates nothing; empty permissions mean no access; a missing response fails "
    "the pod and keeps its devices allocated (section 6.3)",
    cure="answer each container request with one response; absolute paths, permissions such as 'rw'",
)
async def _one_device(case: Case) -> str:
    async with case.with_device() as (scene, device):
        began = anyio.current_time()
        replies = await allocate(scene, [device])
        took = anyio.current_time() - began
        scene.require(len(replies) == 1, f"{plural(len(replies), 'container response')} for one container request")
        scene.require(took <= case.limit(1.0), f"Allocate took {took:.2f} s; no other pod is admitted meanwhile")
        problems = problems_of(replies[0])
        scene.require(not problems, "; ".join(problems))
    return f"one response after {took * 1000:.1f} ms: {shown(replies[0])}"


@CHECKS.add(
    34,
    "the order of the ids does not matter",
    expected="Allocate of two devices in both orders: the same effect, or the same refusal",
    rule="section 6.1: the kubelet sends the ids of a container in random order",
    cure="sort the ids before you make anything of them",
)
async def _any_order(case: Case) -> str:
    """Look for an allowed pair: a plugin may refuse all pairs, or two devices of different cards."""
    case.require_devices()
    refused: CallError | None = None
    async with case.connected() as scene:
        scene.some(2)
        for first, second in combinations(scene.healthy[:_PAIRED], 2):
            one, other = await _pair(scene, first, second), await _pair(scene, second, first)
            if isinstance(one, CallError) and isinstance(other, CallError):
                refused = one
                continue
            for outcome in (one, other):
                if isinstance(outcome, CallError):
                    raise scene.failed(f"Allocate of {first} and {second} was refused in one order only: {outcome}")
            assert not isinstance(one, CallError)
            assert not isinstance(other, CallError)
            again = await _pair(scene, first, second)
            tokens = frozenset[str]() if isinstance(again, CallError) else varying(one, again)
            difference = differences(without_order(one), without_order(other), tokens)
            scene.require(not difference, f"the two orders gave different answers: {difference}")
            return f"both orders gave {shown(one)}"
    raise NotApplicable(f"the plugin refuses two devices for one container: {refused}")


_PAIRED = 8
"""Number of devices in the tried pairs. That makes 56 calls, and a call may take a second."""

_BROKEN = ("INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "CANCELLED", "DATA_LOSS")
"""Codes with which a plugin does not refuse a request but fails at it."""

_UNCAUGHT = ("Unexpected <class", "Exception calling application")
"""How gRPC's Python servers begin the text of an exception that the plugin did not catch; its code is UNKNOWN."""


async def _pair(scene: PluginScene, *devices: str) -> ContainerReply | CallError:
    """Allocate two devices for one container; return the reply, or the error with which the plugin refuses them."""
    try:
        replies = await allocate(scene, devices)
    except CallError as error:
        is_broken = error.code in _BROKEN or error.detail.startswith(_UNCAUGHT)
        scene.require(not is_broken, f"Allocate of {' and '.join(devices)} failed: {error}")
        return error
    scene.require(len(replies) == 1, f"{plural(len(replies), 'container response')} for one container request")
    return replies[0]


@CHECKS.add(
    35,
    "a device may be allocated again without being freed",
    expected="Allocate of the same id twice: both succeed",
    rule=(
        "section 6.2: later containers get the devices of init containers again; section 6.5: there is no deallocation"
    ),
    cure="do not track what is in use, because the kubelet does; make Allocate idempotent",
)
async def _again(case: Case) -> str:
    async with case.with_device() as (scene, device):
        [one] = await allocate(scene, [device])
        if (refused := await _refusal(scene, [device])) is not None:
            raise scene.failed(f"the second Allocate of {device} was refused: {refused}")
    return f"twice {shown(one)}"


@CHECKS.add(
    36,
    "a sidecar and a container get devices of their own",
    expected="a restartable init container and a container, one device each: both admitted with different ids",
    rule="section 6.2: sidecars keep their devices for the pod's life, so the next container gets others",
    cure="answer Allocate for each container on its own",
)
async def _sidecar(case: Case) -> str:
    case.require_devices()
    async with case.connected() as scene:
        scene.some(2)
        wanted = {scene.resource: 1}
        pod = Pod(containers=[Container("main", wanted)], init_containers=[Container("side", wanted, restartable=True)])
        admitted = await scene.kubelet.admit(pod)
        side, main = (admitted.devices(scene.resource, name) for name in ("side", "main"))
        scene.require(side and main and not set(side) & set(main), f"the sidecar got {side}, the container {main}")
        calls = scene.kubelet.events.of(events.AllocateRequested, resource=scene.resource)
        scene.require(len(calls) == 2, f"{plural(len(calls), 'Allocate')} for two containers")
    return f"the sidecar got {ids(side)}, the container {ids(main)}"


@CHECKS.add(
    37,
    "an unknown id is refused",
    expected=(
        "Allocate of an id that is not listed: a gRPC error; the process, the stream and the next Allocate are fine"
    ),
    rule="section 6.3: any gRPC error fails this pod with its text; a reply for a missing device starts a "
    "container without it",
    cure="look up every id, and refuse with INVALID_ARGUMENT and a sentence that the user understands",
)
async def _unknown_id(case: Case) -> str:
    async with case.connected() as scene:
        refused = await _refusal(scene, ["no-such-device"])
        scene.require(refused is not None, "Allocate of the unknown id 'no-such-device' succeeded")
        await _still_works(scene, "the unknown id")
    return str(refused)


@CHECKS.add(
    38,
    "an unhealthy device is refused",
    expected="Allocate of a device that has just failed returns a gRPC error, and the list shows the device Unhealthy",
    rule="section 6.2: the kubelet chooses from its last list, which may be older than the fault",
    cure="check the device's health in Allocate, and refuse with a sentence",
    levers=("fail", "heal"),
)
async def _unhealthy_id(case: Case) -> str:
    async with case.with_device() as (scene, device):
        await scene.instance.fail(device)
        await scene.until_not_healthy(device, f"the list never showed that {device} failed")
        refused = await _refusal(scene, [device])
        scene.require(refused is not None, f"Allocate of the failed device {device} succeeded")
        await _still_works(scene, "the failed device")
    return str(refused)


@CHECKS.add(
    39,
    "several container requests are answered in order",
    expected="Allocate with two container requests: two responses, in the same order",
    rule=(
        "section 1.1: the message can carry several requests; kubelets send one and read only the first response "
        "(section 6.1)"
    ),
    cure="loop over container_requests and append one response for each",
)
async def _two_requests(case: Case) -> str:
    case.require_devices()
    async with case.connected() as scene:
        first, second = scene.some(2)
        alone = [await _twice(scene, device) for device in (first, second)]
        together = await allocate(scene, [first], [second])
        scene.require(len(together) == 2, f"{plural(len(together), 'response')} for two container requests")
        for (expected, tokens), reply in zip(alone, together, strict=True):
            difference = differences(expected, reply, tokens)
            scene.require(not difference, f"the responses are not in the order of the requests: {difference}")
    return "two responses in order"


@CHECKS.add(
    40,
    "an empty Allocate is answered properly",
    expected="no container requests, or one without ids: a well-formed reply or INVALID_ARGUMENT; nothing crashes",
    rule="section 6.3: an unexpected request must not end the process",
    cure="answer an empty request with an empty response or INVALID_ARGUMENT",
)
async def _empty(case: Case) -> str:
    outcomes: list[str] = []
    async with case.connected() as scene:
        for requests, what in (((), "no container request"), (((),), "a container request without ids")):
            try:
                replies = await allocate(scene, *requests)
            except CallError as error:
                scene.require(error.code == "INVALID_ARGUMENT", f"{what} was answered with {error}")
                outcomes.append(f"{what}: INVALID_ARGUMENT")
            else:
                scene.require(
                    len(replies) == len(requests), f"{what} was answered with {plural(len(replies), 'response')}"
                )
                outcomes.append(f"{what}: {plural(len(replies), 'response')}")
            await _still_works(scene, what)
    return "; ".join(outcomes)


@CHECKS.add(
    41,
    "parallel Allocates do not mix",
    expected="50 Allocates at once, fewer if they are slow: each gets the reply that its device gets alone",
    rule="section 6.1: kubelets allocate one after another, but pod workers can overlap with them",
    cure="share no state between requests",
)
async def _parallel(case: Case) -> str:
    async with case.connected() as scene:
        alone: dict[str, tuple[ContainerReply, frozenset[str]]] = {}
        began = anyio.current_time()
        for device in scene.at_most(10):
            if len(alone) < 2 or anyio.current_time() - began < _ALONE:
                alone[device] = await _twice(scene, device)
        each = (anyio.current_time() - began) / (2 * len(alone))
        # A plugin may serve one after another; the last one must be answered in time, too.
        count = min(50, max(2, int(_TOGETHER / each)))
        devices = list(alone)
        answers: list[tuple[str, ContainerReply]] = []

        async def one(device: str) -> None:
            [reply] = await allocate(scene, [device])
            answers.append((device, reply))

        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, devices[number % len(devices)])
        took = anyio.current_time() - began
        for device, reply in answers:
            difference = differences(alone[device][0], reply, alone[device][1])
            scene.require(not difference, f"the answer for {device} was another's: {difference}")
        await _still_works(scene, f"{count} Allocates at once")
    return f"{count} answers in {took * 1000:.0f} ms, none mixed up"


_ALONE = 5.0
"""Seconds for allocating devices one by one. If Allocate is slow, two devices are enough."""

_TOGETHER = 10.0
"""Seconds for all parallel calls if the plugin serves one after another: half of a plugin's deadline of 20 s."""


@CHECKS.add(
    42,
    "a hanging Allocate ends by itself",
    expected=(
        "the backend hangs: DEADLINE_EXCEEDED or ABORTED after the plugin's own deadline; other calls and the "
        "list go on"
    ),
    rule="section 6.1: the kubelet sets no deadline, admits no pod while it waits, and counts as dead after 5 minutes",
    cure="give your own work a deadline of 20 to 30 s, and then answer with an error",
)
async def _hanging(case: Case) -> str:
    async with case.with_device(Staging(allocate="hangs")) as (scene, device):
        answer: list[CallError | list[ContainerReply]] = []
        began = anyio.current_time()

        async def call() -> None:
            try:
                answer.append(await allocate(scene, [device], within=case.limit(3.0)))
            except CallError as error:
                answer.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await scene.until(scene.instance.entered, case.limit(1.0), "Allocate did not reach the backend")
            with anyio.fail_after(_FAR):
                await scene.client.options(case.limit(1.0))
            stream = scene.client.watch()
            scene.require(await stream.next(case.limit(1.0)), "no list came on a new stream while Allocate hung")
            stream.cancel()
        took = anyio.current_time() - began
        [error] = answer
        if not isinstance(error, CallError):
            raise scene.failed(f"Allocate was answered with {error}")
        scene.require(error.code in ("DEADLINE_EXCEEDED", "ABORTED"), f"Allocate was answered with {error}")
        scene.require(scene.kubelet.streams(scene.resource) == 1, "the stream ended")
    return f"{error.code} after {took:.1f} s: {error.detail}"


@CHECKS.add(
    43,
    "an exception in Allocate becomes one short error",
    expected="the backend raises: the error is INTERNAL and short, without a traceback and without the exception's "
    "own text; the stream stays open",
    rule="section 6.3: the user sees the text of the error; section 0.1: keep it far below 8 KiB",
    cure="catch everything in Allocate, log it, and answer with one sentence",
)
async def _raising(case: Case) -> str:
    async with case.with_device(Staging(allocate="raises")) as (scene, device):
        refused = await _refusal(scene, [device])
        if refused is None:
            raise scene.failed("Allocate succeeded although the backend raised")
        scene.require(refused.code == "INTERNAL", f"the code was {refused.code}: {refused.detail}")
        scene.require(SECRET not in refused.detail, f"the user sees the exception's own text: {refused.detail}")
        traced = "Traceback" in refused.detail or 'File "' in refused.detail
        scene.require(not traced and len(refused.detail) <= 1024, f"the text is a traceback: {refused.detail[:200]}")
        scene.instance.release()
        await _still_works(scene, "the exception")
    return str(refused)


@CHECKS.add(
    44,
    "a cancelled Allocate stops its work",
    expected="the kubelet cancels the call: the backend's work is cancelled, the next Allocate is fine",
    rule="section 6.1: a kubelet that ends cancels the call and forgets its choice; next it may ask for other devices",
    cure="stop the work when the call's context is cancelled, and keep no half-made state",
)
async def _cancelled(case: Case) -> str:
    async with case.with_device(Staging(allocate="slow")) as (scene, device):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(allocate, scene, [device])
            await scene.until(scene.instance.entered, case.limit(1.0), "Allocate did not reach the backend")
            tasks.cancel_scope.cancel()
        await scene.until(
            scene.instance.cancelled, case.limit(0.1), "the backend's work went on after the cancellation"
        )
        scene.instance.release()
        await _still_works(scene, "the cancelled Allocate")
    return "the backend's work was cancelled, the next Allocate succeeded"


async def _all_replies(scene: PluginScene, most: int = 16) -> list[ContainerReply]:
    replies: list[ContainerReply] = []
    for device in scene.healthy[:most]:
        replies += await allocate(scene, [device])
    return replies


@CHECKS.add(
    45,
    "what Allocate made survives the plugin's restart",
    expected="after the plugin has ended, and after it has started again, everything that the reply names exists",
    rule="section 6.1: Allocate is not called again when a container or the plugin restarts: the old reply is used",
    cure="when the process ends, keep everything that a reply has named: mount sources, CDI specs, device nodes",
)
async def _survives_restart(case: Case) -> str:
    async with case.connected() as scene:
        scene.some(1)
        replies = await _all_replies(scene)
        missing = missing_artefacts(replies, case.cdi_dirs, case.subject.node_root)
        scene.require(not missing, f"the reply names missing things: {ids(missing)}")
        await scene.stop(scene.instance)
        missing = missing_artefacts(replies, case.cdi_dirs, case.subject.node_root)
        scene.require(not missing, f"after the plugin ended, these were gone: {ids(missing)}")
        known = len(scene.lists)
        await scene.start()
        await scene.connected(lists=known)
        missing = missing_artefacts(replies, case.cdi_dirs, case.subject.node_root)
        scene.require(not missing, f"after the plugin started again, these were gone: {ids(missing)}")
    return f"{named(replies)}, all there before, between and after"


@CHECKS.add(
    46,
    "after a reboot everything exists before Register",
    expected="a node with a pod restarts: everything in the pod's reply exists before the plugin registers, and the "
    "pod is admitted with the old reply",
    rule="section 4.6: after a reboot the kubelet uses the cached reply without Allocate, so the plugin must make its "
    "files in tmpfs again when it starts",
    cure="make device nodes, mount sources and CDI specs at the start, before you register; give each device the same "
    "id at each start",
    routes=KUBELET_SOCK,
)
async def _reboot(case: Case) -> str:
    missing: list[str] = []
    replies: list[ContainerReply] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.RegisterReceived) and replies:
            missing.extend(missing_artefacts(replies, case.cdi_dirs, case.subject.node_root))

    async with case.node(listener=listen) as scene:
        await scene.start()
        await scene.connected()
        await scene.filled()
        scene.some(1)
        admitted = await scene.kubelet.admit(Pod.asking({scene.resource: 1}))
        known = len(scene.lists)
        scene.may_end(scene.instance)
        await scene.instance.kill()
        replies.append(admitted.reply())
        await scene.kubelet.restart(reboot=True)
        await scene.start()
        await scene.connected(lists=known)
        await scene.filled()
        lost = set(admitted.devices(scene.resource)) - set(scene.healthy)
        scene.require(not lost, f"after the next start these are not Healthy: {ids(lost)}, but {ids(scene.healthy)}")
        scene.require(not missing, f"at Register these did not exist: {ids(missing)}")
        [outcome] = (await scene.kubelet.readmit()).values()
        if not isinstance(outcome, AdmittedPod):
            raise scene.failed(f"after the reboot the pod was refused: {outcome}")
        scene.require(outcome.reply() == admitted.reply(), "after the reboot the pod got another reply")
    return f"{named(replies)}, all there at Register; the pod is back with its old reply"


@CHECKS.add(
    47,
    "every CDI name resolves",
    expected="each CDI name in a reply is declared by a spec in /etc/cdi or /var/run/cdi at that moment",
    rule=(
        "section 6.4: a name that the runtime cannot resolve is an error when the container is created, not at "
        "admission"
    ),
    cure="write the spec before you answer with its names, and rename it into place",
)
async def _cdi_names(case: Case) -> str:
    async with case.connected() as scene:
        scene.some(1)
        replies = await _all_replies(scene)
        only_cdi = [attrs.evolve(reply, devices=(), mounts=()) for reply in replies]
        missing = missing_artefacts(only_cdi, case.cdi_dirs, case.subject.node_root)
        scene.require(not missing, f"no spec declares {ids(missing)}")
        names = {name for reply in replies for name in reply.cdi_devices}
        requests = [key for reply in replies for key in reply.annotations if key.startswith("cdi.k8s.io/")]
        if requests:
            raise NotApplicable(
                f"the plugin asks for CDI devices by annotations ({requests[0]}), which are not resolved here"
            )
    count = plural(len(replies), "reply").replace("replys", "replies")
    return f"{count} with {plural(len(names), 'CDI name')}, all declared" if names else f"{count} without a CDI name"
