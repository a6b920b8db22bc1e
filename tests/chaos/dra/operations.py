"""What can happen on a node with a DRA driver, each with how often. `DraWorld.settle` ends what disturbs."""

from __future__ import annotations

import os
import resource
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from tests.chaos import operations as common
from tests.chaos.node import FULL_DISK, NO_DESCRIPTORS, SLOW_DISK

from . import api_faults
from .world import DraWorld, stranger

Operation = Callable[[DraWorld], Awaitable[None]]


def _wishes(world: DraWorld, most: int) -> list[dict[str, tuple[str, ...]]]:
    """Choose free devices for up to so many claims; each has one or two requests, of one or two devices."""
    free = world.free()
    world.rng.shuffle(free)
    found: list[dict[str, tuple[str, ...]]] = []
    for _ in range(world.rng.randint(1, most)):
        claim: dict[str, tuple[str, ...]] = {}
        for request in ("r0", "r1")[: world.rng.choice([1, 2])]:
            count = world.rng.choice([1, 1, 2])
            if len(free) >= count:
                claim[request] = tuple(free.pop() for _ in range(count))
        if claim:
            found.append(claim)
    return found


async def prepare(world: DraWorld) -> None:
    """A pod comes, with one claim or several in one call."""
    wishes = _wishes(world, 3)
    if wishes:
        await world.start_pod(world.schedule(wishes))


async def prepare_many(world: DraWorld) -> None:
    """Pods come at once."""
    async with anyio.create_task_group() as tasks:
        for wish in _wishes(world, 5):
            tasks.start_soon(world.start_pod, world.schedule([wish]))


async def unprepare(world: DraWorld) -> None:
    """A pod goes."""
    if world.waiting:
        await world.stop_pod(world.rng.choice(world.waiting))


async def unprepare_all(world: DraWorld) -> None:
    """All pods go at once, as when a node is drained."""
    async with anyio.create_task_group() as tasks:
        for pod in world.waiting:
            tasks.start_soon(world.stop_pod, pod)


async def prepare_again(world: DraWorld) -> None:
    """A pod gets a new sandbox, which a kubelet that was restarted prepares for; or the same call comes again."""
    if world.waiting and world.rng.random() < 0.5:
        await world.start_pod(world.rng.choice(world.waiting))
    claims = world.settled_claims
    if claims:
        world.rng.shuffle(claims)
        await world.call(*map(world.entry, claims[: world.rng.randint(1, 4)]))


async def strangers(world: DraWorld) -> None:
    """Somebody calls with claims that there are not, and with none, beside one that there is."""
    await world.call(*map(world.entry, world.settled_claims[:1]), stranger())
    await world.call(stranger(), stranger(), unprepare=True)
    await world.call(unprepare=world.rng.random() < 0.5)


async def vanish(world: DraWorld) -> None:
    """A pod is deleted by force, and its claims go from the API while they are prepared."""
    if world.waiting:
        world.vanish(world.rng.choice(world.waiting))


async def steal(world: DraWorld) -> None:
    """The same, and the scheduler gives the devices to another claim at once. The record may be damaged before."""
    damaged = world.damage_record() if world.rng.random() < 0.7 else None
    uids = [uid for uid, life in world.judge.lives.items() if life.answer is not None and not life.may_go]
    pods = {name: pod for pod in world.waiting for name in pod.claims}
    if uids:
        life = world.judge.lives[damaged or world.rng.choice(uids)]
        if life.name in pods:
            wanted = life.wanted
            world.vanish(pods[life.name])
            await world.start_pod(world.schedule([wanted]))


async def forget_all(world: DraWorld) -> None:
    """The kubelet loses its checkpoint, and all pods and claims are gone."""
    await world.forget_all()


async def reallocate(world: DraWorld) -> None:
    """The kubelet loses its checkpoint, all pods are gone, and the scheduler gives one's claims other devices."""
    if not world.waiting:
        return
    pod = world.rng.choice(world.waiting)
    await world.forget_all(keeping=pod)
    free = world.free()
    world.rng.shuffle(free)
    if len(free) < len(pod.claims):
        world.forget_claims(pod)  # nobody would end them
    else:
        await world.start_pod(world.reschedule(pod, [{"r0": (free.pop(),)} for _ in pod.claims]))


async def renumber(world: DraWorld) -> None:
    """Cards get other device nodes, perhaps while the disk fails."""
    if world.rng.random() < 0.6:
        world.disk(world.rng.choice(common.FAULTS))
    for name in world.toys:
        if world.rng.random() < 0.5:
            world.renumber(name)
    await anyio.sleep(world.rng.uniform(0.2, 0.8))
    world.disk(None)


async def restart_kubelet(world: DraWorld) -> None:
    """The kubelet is restarted, and makes new sandboxes for some of its pods."""
    world.causes.add("the kubelet was restarted")
    await world.kubelet.restart(down=world.rng.choice([0.0, 0.0, 0.5]))
    for pod in world.waiting:
        if world.rng.random() < 0.5:
            await world.start_pod(pod)


async def kubelet_faults(world: DraWorld) -> None:
    """The kubelet misses a socket, refuses a registration, or does not tell that it has registered the driver."""
    world.causes.add("the kubelet was not well")
    faults = world.kubelet.faults
    world.rng.choice([faults.miss_creates, faults.notify_refused, faults.info_times_out, faults.notify_never])()
    await world.kubelet.restart()


async def kill(world: DraWorld) -> None:
    """The driver is killed, and started again by its DaemonSet, or not before the next peace."""
    await world.kill()
    if world.rng.random() < 0.7:
        await world.start()


async def terminate(world: DraWorld) -> None:
    """The driver is updated: the old one ends, the new one starts."""
    await world.terminate()
    await world.start()


async def kill_amid_prepare(world: DraWorld) -> None:
    """The driver is killed while it prepares."""
    await _amid_prepare(world, world.kill)


async def terminate_amid_prepare(world: DraWorld) -> None:
    """The driver is asked to stop while it prepares."""
    await _amid_prepare(world, world.terminate)


async def kill_amid_unprepare(world: DraWorld) -> None:
    """The driver is killed while it undoes a claim."""
    await _amid_unprepare(world, world.kill)


async def terminate_amid_unprepare(world: DraWorld) -> None:
    """The driver is asked to stop while it undoes a claim."""
    await _amid_unprepare(world, world.terminate)


async def unprepare_amid_prepare(world: DraWorld) -> None:
    """A pod is deleted while its claims are prepared."""
    wishes = _wishes(world, 2)
    if not wishes:
        return
    world.causes.add("a claim was unprepared while it was prepared")
    is_long = world.rng.random() < 0.5
    world.command(f"allocate={4.0 if is_long else world.rng.uniform(0.05, 0.6):.3f}")
    pod = world.schedule(wishes)
    records = [world.files.record(world.claim_of(name)) for name in pod.claims]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.start_pod, pod)
        with anyio.move_on_after(1.0 if is_long else 0.0):
            while not any(record.exists() for record in records):  # noqa: ASYNC110 - another process's files
                await anyio.sleep(0.02)
        await anyio.sleep(world.rng.uniform(0.0, 0.5))
        tasks.start_soon(world.stop_pod, pod)
    world.command(None)


async def _amid_prepare(world: DraWorld, end: Callable[[], Awaitable[None]]) -> None:
    wishes = _wishes(world, 2)
    if not wishes:
        return
    world.command(f"allocate={world.rng.choice([3.0, world.rng.uniform(0.0, 0.4)]):.3f}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.start_pod, world.schedule(wishes))
        await anyio.sleep(world.rng.uniform(0.0, 0.5))
        await end()
    world.command(None)
    await world.start()


async def _amid_unprepare(world: DraWorld, end: Callable[[], Awaitable[None]]) -> None:
    if not world.waiting:
        return
    world.command(f"released={world.rng.choice([3.0, world.rng.uniform(0.0, 0.4)]):.3f}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.stop_pod, world.rng.choice(world.waiting))
        await anyio.sleep(world.rng.uniform(0.0, 0.5))
        await end()
    world.command(None)
    await world.start()


async def update(world: DraWorld) -> None:
    """A new version starts beside the old one, which then ends."""

    async def meanwhile() -> None:
        for _ in range(world.rng.randint(0, 2)):
            await anyio.sleep(world.rng.uniform(0.0, 0.5))
            await world.rng.choice([prepare, unprepare, prepare_again])(world)

    world.be_new_pod()
    await world.overlap(meanwhile, world.rng.choice(["first", "update", "update"]))


async def update_amid_releases(world: DraWorld) -> None:
    """Pods go while a new version starts, and their releases take long or fail at first."""
    pods = world.waiting[:3]
    how = world.rng.choice(["raise", "0.3", "0.6"])

    async def meanwhile() -> None:
        await anyio.sleep(world.rng.uniform(0.2, 1.5))
        world.command(None)

    world.command(f"released{_for(world)}={how}")
    async with anyio.create_task_group() as tasks:
        for pod in pods:
            tasks.start_soon(world.stop_pod, pod)
    world.be_new_pod()
    await world.overlap(meanwhile, world.rng.choice(["first", "update"]))


async def hook_raises(world: DraWorld) -> None:
    """A hook raises for a while."""
    world.command(f"{world.rng.choice(['allocate', 'discover', 'prepare_container', 'released'])}{_for(world)}=raise")
    await prepare(world)
    await unprepare(world)


def _for(world: DraWorld) -> str:
    """Return what makes a hook fail for all requests, or for the second one of a claim only."""
    return world.rng.choice(["", " r1"])


async def prepare_anew_without_api(world: DraWorld) -> None:
    """A Prepare fails, and comes again while the API server is away."""
    wishes = _wishes(world, 2)
    if wishes:
        pod = world.schedule(wishes)
        world.command(f"{world.rng.choice(['allocate', 'prepare_container'])}{_for(world)}=raise")
        await world.start_pod(pod)
        world.command(None)
        api_faults.go_away(world)
        await world.start_pod(pod)
        if world.rng.random() < 0.5:
            world.server.faults.back()


async def release_fails(world: DraWorld) -> None:
    """`released` fails beside an Unprepare, and the scheduler gives the devices to another claim at once."""
    if not world.waiting:
        return
    which = _for(world)
    world.command(f"released{which}={world.rng.choice(['raise', 'raise', 'hang', '1.5'])}")
    both = [pod for pod in world.waiting if any("r1" in world.life_of(name).wanted for name in pod.claims)]
    pod = world.rng.choice(both if which and both else world.waiting)
    wanted = [world.life_of(name).wanted for name in pod.claims]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.stop_pod, pod)
        await anyio.sleep(world.rng.uniform(0.3, 1.5))
        if pod.uid not in world.pods and all(
            device in world.hardware for each in wanted for d in each.values() for device in d
        ):
            await world.start_pod(world.schedule(wanted))
        world.command(None)


async def bad_disk(world: DraWorld) -> None:
    """The disk fails, until the next peace or for a moment."""
    world.disk(world.rng.choice(common.FAULTS))
    await world.rng.choice([prepare, unprepare])(world)
    if world.rng.random() < 0.5:
        world.disk(None)


async def slow_disk(world: DraWorld) -> None:
    """Each write takes long, until the next peace."""
    world.disk(f"fsync={world.rng.uniform(0.1, 1.0):.2f}", SLOW_DISK)
    await world.rng.choice([prepare, unprepare])(world)


async def kill_at_a_step(world: DraWorld) -> None:
    """The driver is killed at a step of what it does to its files."""
    if await world.until_awake():
        world.kill_at(world.rng.randint(1, 12))
        await world.rng.choice([prepare, prepare, unprepare, steal])(world)
        world.disk(None)
        await world.start()


async def reboot(world: DraWorld) -> None:
    """The node boots again."""
    await world.reboot()
    await world.start()


async def hook_hangs(world: DraWorld) -> None:
    """A hook hangs for a moment while it is called, or until the driver ends."""
    hook = world.rng.choice(["allocate", "discover", "prepare_container", "released"])
    world.command(f"{hook}=hang")
    calls = {"released": unprepare, "discover": common.wait, "allocate": prepare, "prepare_container": prepare}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls[hook], world)
        await anyio.sleep(world.rng.uniform(0.1, 0.7))
        if world.rng.random() < 0.3:
            await world.kill()
        elif world.rng.random() < 0.3:
            await world.terminate()
        world.command(None)


async def full_disk(world: DraWorld) -> None:
    """Nothing can be written any more, until the next peace."""
    world.causes.add(FULL_DISK)
    world.limit(resource.RLIMIT_FSIZE, 0)
    await world.rng.choice([prepare, unprepare])(world)


async def few_descriptors(world: DraWorld) -> None:
    """The driver runs out of file descriptors, until the next peace. One that still loads gRPC would end."""
    if world.pid is not None and world.is_serving:
        world.causes.add(NO_DESCRIPTORS)
        world.limit(resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{world.pid}/fd")) + world.rng.randint(0, 3))
        await world.rng.choice([prepare, unprepare, prepare_many, unprepare_all])(world)


async def starve_amid_unprepare(world: DraWorld) -> None:
    """Descriptors or the disk run out while `released` is called, until the next peace."""
    if not world.waiting or not world.is_serving:
        return
    world.command("released=0.4")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.stop_pod, world.rng.choice(world.waiting))
        await anyio.sleep(world.rng.uniform(0.05, 0.3))
        if world.rng.random() < 0.3:
            world.causes.add(FULL_DISK)
            world.limit(resource.RLIMIT_FSIZE, 0)
        elif world.pid is not None:
            world.causes.add(NO_DESCRIPTORS)
            world.limit(resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{world.pid}/fd")))
    world.command(None)


async def damage_record(world: DraWorld) -> None:
    """What the driver remembers of a claim is damaged or removed; perhaps its pod goes, or it is prepared again."""
    uid = world.damage_record()
    if uid is None:
        return
    pods = [pod for pod in world.waiting if world.judge.lives[uid].name in pod.claims]
    match world.rng.randrange(4):
        case 0:
            await world.call(world.entry(uid))
        case 1 if pods:
            await world.stop_pod(pods[0])
        case 2 if pods:
            world.vanish(pods[0])
        case _:
            pass


async def damage_spec(world: DraWorld) -> None:
    """The CDI spec of a claim is damaged or removed, and a new sandbox asks for it."""
    uid = world.damage_spec()
    if uid is not None:
        await world.call(world.entry(uid))


WEIGHTS: Final[dict[Operation, int]] = {
    prepare: 22,
    prepare_many: 5,
    unprepare: 14,
    unprepare_all: 3,
    prepare_again: 8,
    strangers: 3,
    vanish: 4,
    steal: 6,
    forget_all: 1,
    reallocate: 2,
    renumber: 4,
    restart_kubelet: 5,
    kubelet_faults: 2,
    kill: 4,
    kill_amid_prepare: 4,
    kill_amid_unprepare: 4,
    terminate: 2,
    terminate_amid_prepare: 2,
    terminate_amid_unprepare: 2,
    unprepare_amid_prepare: 6,
    prepare_anew_without_api: 3,
    update: 4,
    update_amid_releases: 3,
    release_fails: 6,
    bad_disk: 4,
    slow_disk: 1,
    kill_at_a_step: 4,
    reboot: 3,
    hook_raises: 3,
    hook_hangs: 3,
    full_disk: 3,
    few_descriptors: 4,
    starve_amid_unprepare: 6,
    damage_record: 6,
    damage_spec: 7,
    common.freeze: 3,
    common.plug: 4,
    common.unplug: 4,
    common.flap: 5,
    common.burst: 2,
    common.garbage: 3,
    common.remove_socket: 3,
    common.two_plugins: 1,
    common.reload: 2,
    common.sever: 3,
    common.step_clock: 2,
    common.attack_probes: 1,
    common.wait: 6,
    **api_faults.WEIGHTS,
}
