"""What can happen on a node, each with how often. An operation may leave a disturbance; `World.settle` ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from kdp.allocation.sharing import base_id
from kdp.testing import CallError, DialError, PluginConnection

from . import disk
from .node import FROZEN, FULL_DISK, NO_DESCRIPTORS, SLOW_DISK, Node
from .world import World

Operation = Callable[[World], Awaitable[None]]


async def admit(world: World) -> None:
    """A pod comes."""
    await world.admit(world.rng.choice([1, 1, 2, 3]))


async def admit_many(world: World) -> None:
    """Pods come one after the other."""
    for _ in range(world.rng.randint(3, 6)):
        await world.admit(1)


async def delete(world: World) -> None:
    """A pod goes."""
    if world.pods:
        await world.delete(world.rng.choice(world.pods))


async def delete_all(world: World) -> None:
    """All pods go, as when a node is drained."""
    for pod in list(world.pods):
        await world.delete(pod)


async def restart_kubelet(world: World) -> None:
    """The kubelet is restarted."""
    await world.restart_kubelet()


async def kill(world: World) -> None:
    """The plugin is killed, and started again by its DaemonSet, or not before the next peace."""
    await world.kill()
    if world.rng.random() < 0.7:
        await world.start()


async def terminate(world: World) -> None:
    """The plugin is updated: the old one ends, the new one starts."""
    await world.terminate()
    await world.start()


async def kill_amid_allocate(world: World) -> None:
    """The plugin is killed while it answers a pod."""
    await _amid_allocate(world, world.kill)


async def terminate_amid_allocate(world: World) -> None:
    """The plugin is asked to stop while it answers a pod."""
    await _amid_allocate(world, world.terminate)


async def restart_kubelet_amid_discovery(world: World) -> None:
    """The kubelet is restarted while the backend looks for devices."""
    world.command("discover=0.3")
    await world.restart_kubelet()


async def _amid_allocate(world: World, end: Callable[[], Awaitable[None]]) -> None:
    world.command(f"allocate={world.rng.uniform(0.05, 0.4):.3f}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.admit, 1)
        await anyio.sleep(world.rng.uniform(0.0, 0.5))
        await end()
    world.command(None)
    await world.start()


async def freeze(world: Node) -> None:
    """The plugin gets no CPU for a while."""
    world.causes.add(FROZEN)
    world.signal(signal.SIGSTOP)
    await anyio.sleep(world.rng.uniform(0.05, 1.5))
    world.signal(signal.SIGCONT)


async def plug(world: Node) -> None:
    """A toy is plugged in."""
    if len(world.hardware) < 40:
        world.plug()


async def unplug(world: Node) -> None:
    """A toy is taken away, held or not."""
    toys = [*world.toys]
    if len(world.hardware) > 4 and toys:
        world.unplug(world.rng.choice(toys))


async def move(world: World) -> None:
    """A card comes back under another name, in another resource, or another card comes in its slot."""
    ways = ["name", "name", "slot", *(["resource"] if len(world.variant.resources) > 1 else [])]
    way = world.rng.choice(ways)
    toys = [*world.toys]
    if toys:
        held = [name for name in toys if world.cards[name] in world.held_cards]
        world.move(world.rng.choice(held or toys), way)
        await admit_many(world)


async def flap(world: Node) -> None:
    """A toy falls sick and becomes well, several times."""
    name = world.rng.choice(world.toys)
    for turn in range(world.rng.randint(1, 8)):
        world.fall(name, sick=turn % 2 == 0)
        await anyio.sleep(world.rng.uniform(0.0, 0.15))


async def burst(world: Node) -> None:
    """All toys fall sick at once, and most become well."""
    for name in world.toys:
        world.fall(name, sick=True)
    await anyio.sleep(world.rng.uniform(0.0, 0.3))
    for name in world.toys:
        world.fall(name, sick=world.rng.random() < 0.1)


async def hook_raises(world: World) -> None:
    """A hook raises for a while."""
    hook = world.rng.choice(["allocate", "discover", "released", "prepare_container"])
    world.command(f"{hook}=raise")
    if hook == "released":
        await delete(world)
    elif hook == "prepare_container":
        await restart_container(world)
    await admit(world)
    await anyio.sleep(world.rng.uniform(0.0, 0.5))


async def hook_hangs(world: World) -> None:
    """A hook hangs until the next peace, or until the plugin is killed."""
    world.command(f"{world.rng.choice(['discover', 'released'])}=hang")
    await anyio.sleep(world.rng.uniform(0.0, 0.5))


async def garbage(world: Node) -> None:
    """Somebody sends rubbish to the plugin's sockets."""
    for path in world.sockets:
        for _ in range(world.rng.randint(1, 5)):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as somebody:
                somebody.settimeout(1.0)
                somebody.connect(str(path))
                start = world.rng.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"])
                somebody.sendall(start + world.rng.randbytes(world.rng.choice([0, 9, 100, 20_000])))


async def remove_socket(world: Node) -> None:
    """Somebody cleans up the kubelet's directory while it runs."""
    world.causes.add("the plugin's socket was removed")
    for path in world.sockets:
        path.unlink(missing_ok=True)


async def full_disk(world: World) -> None:
    """Nothing can be written any more, until the next peace."""
    world.causes.add(FULL_DISK)
    world.limit(resource.RLIMIT_FSIZE, 0)
    await admit(world)


async def few_descriptors(world: World) -> None:
    """The plugin runs out of file descriptors, until the next peace. One that still loads gRPC would end."""
    if world.pid is not None and world.is_serving:
        world.causes.add(NO_DESCRIPTORS)
        world.limit(resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{world.pid}/fd")) + world.rng.randint(0, 3))
        await admit(world)


FAULTS: Final = (disk.EIO, disk.EROFS, disk.NO_RENAME, disk.NO_UNLINK, disk.NO_SPACE)


async def bad_disk(world: World) -> None:
    """The disk fails, until the next peace or for a moment; the plugin must say so."""
    world.disk(world.rng.choice(FAULTS))
    await world.rng.choice([admit, admit_many, delete])(world)
    if world.rng.random() < 0.6:
        await world.judge_files(None)
    if world.rng.random() < 0.5:
        world.disk(None)


async def bad_disk_and_stop(world: World) -> None:
    """The disk fails for one Allocate, or until the plugin has ended; the plugin is asked to stop."""
    world.disk(world.rng.choice([disk.EIO, disk.EROFS, disk.NO_RENAME, disk.NO_SPACE]))
    await admit(world)
    await wait(world)
    if world.rng.random() < 0.7:
        world.disk(None)
    await terminate(world)


async def slow_disk(world: World) -> None:
    """Each write takes long, until the next peace."""
    world.disk(f"fsync={world.rng.uniform(0.3, 3.0):.2f}", SLOW_DISK)
    await admit(world)
    if world.rng.random() < 0.3:
        await terminate(world)


async def kill_at_a_step(world: World) -> None:
    """The plugin is killed at a step of a save or of a take-over."""
    takes_over = world.rng.random() < 0.5
    if takes_over:
        await world.kill()
    world.kill_at(world.rng.randint(1, 8 if takes_over else 12))
    await world.start()
    if takes_over and await world.until_awake():
        await anyio.sleep(0.4)
    for _ in range(world.rng.randint(1, 4)):
        await world.rng.choice([admit, admit, delete])(world)
    world.disk(None)
    await world.start()


async def lose_files(world: World) -> None:
    """The state directory is removed."""
    await world.remove_files()


async def held_allocate(world: World) -> None:
    """An Allocate is held while another pod ends, whose devices are released all the same, once it is over."""
    world.command("allocate=hang")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.admit, 1)
        await anyio.sleep(world.rng.uniform(0.0, 0.2))
        await delete(world)
        await anyio.sleep(world.rng.uniform(0.0, 0.6))
        world.command(None)


async def restart_container(world: World) -> None:
    """A container's process ends, and it is started again."""
    if world.pods:
        await world.restart_container(world.rng.choice(world.pods))


async def unsynced_kubelet(world: World) -> None:
    """The kubelet is restarted, and does not know its pods for longer than two lists are apart."""
    await world.restart_kubelet(without_pods=world.rng.uniform(0.4, 1.5))


async def reboot(world: World) -> None:
    """The node boots again."""
    await world.reboot()
    await world.start()


async def two_plugins(world: Node) -> None:
    """Somebody starts the plugin a second time."""

    async def meanwhile() -> None:
        await anyio.sleep(world.rng.uniform(0.2, 1.5))

    await world.overlap(meanwhile, "second")


async def update(world: World) -> None:
    """A new version starts beside the old one; pods come and go, and then one of both ends."""

    async def meanwhile() -> None:
        for _ in range(world.rng.randint(0, 5)):
            await world.rng.choice([admit, admit, delete, wait, restart_container])(world)

    await world.overlap(meanwhile, world.rng.choice(["first", "second", "update", "update"]))
    for _ in range(world.rng.randint(0, 3)):
        await world.rng.choice([restart_container, admit, delete])(world)


async def reuse_amid_update(world: World) -> None:
    """All toys are held when a new version starts, so it gives devices away again that the old one gave."""
    for _ in range(2 * len(world.hardware)):
        await world.admit(1)

    async def meanwhile() -> None:
        await world.until_awake()
        await anyio.sleep(0.5)
        for _ in range(3):
            await delete(world)
            await world.admit(1)

    await world.overlap(meanwhile, world.rng.choice(["first", "update"]))
    await anyio.sleep(1.2)  # the new version has taken over what the old one gave
    for pod in world.pods[-3:]:
        await world.restart_container(pod)
    for pod in world.pods[::2]:
        await world.delete(pod)


async def reuse_amid_release(world: World) -> None:
    """Releases wait for a slow one, while the kubelet gives their devices away again: all toys are held."""
    if world.variant.scrubs:
        return  # there the start of the container waits, and not the release
    world.command(f"released={world.rng.uniform(0.3, 0.9):.2f}")
    for _ in range(2 * len(world.hardware)):
        await world.admit(1)
    for _ in range(4):
        await delete(world)
    await anyio.sleep(world.rng.uniform(0.4, 1.0))
    for _ in range(4):
        await world.admit(1)
    world.command(None)
    for pod in world.pods[::2]:
        await world.delete(pod)


async def move_amid_release(world: World) -> None:
    """The release of a pod's devices fails, and one of their cards comes back under another name."""
    pods = [pod for pod in world.pods if any(base_id(each) in world.toys for each in world.devices_of(pod))]
    if not pods:
        return
    pod = world.rng.choice(pods)
    names = [name for name in map(base_id, world.devices_of(pod)) if name in world.toys]
    world.command("released=raise")
    await world.delete(pod)
    await anyio.sleep(world.rng.uniform(0.4, 1.5))
    world.move(names[0], "name")
    for _ in range(len(world.hardware)):
        await world.admit(1)
    world.command(None)


async def reload(world: Node) -> None:
    """SIGHUP: the plugin looks again."""
    if await world.until_awake():
        world.signal(signal.SIGHUP)


async def sever(world: Node) -> None:
    """All connections to the plugin break."""
    world.sever()


async def step_clock(world: Node) -> None:
    """Somebody sets the clock, for good."""
    world.step_clock(world.rng.choice([0.0, -3600.0, 3600.0, world.rng.uniform(-1e8, 1e8)]))


async def attack_probes(world: Node) -> None:
    """Somebody connects to the probes, says half of something, and stays until the next peace."""
    for _ in range(world.rng.choice([5, 20, 150])):
        world.occupy_probes(world.rng.choice([b"", b"GET /readyz", b"x", b"GET / HTTP/1.1\r\nx: " + b"y" * 60_000]))


async def hurried_calls(world: World) -> None:
    """Somebody makes calls that no kubelet makes: unknown ids, none, and the same one twice.

    An Allocate of a device that is scrubbed says that its pod has ended, so that one is left out.
    """
    twice = [] if world.variant.scrubs else [["toy00", "toy00"]]
    for path in world.sockets[:1]:
        connection = PluginConnection(str(path))
        with contextlib.suppress(CallError, DialError):
            await connection.dial(timeout=1.0)
            for ids in (["nobody"], [], *twice):
                with contextlib.suppress(CallError):
                    await connection.allocate(ids, timeout=1.0)
            await connection.close()


async def wait(world: Node) -> None:
    """Nothing happens for a moment."""
    await anyio.sleep(world.rng.uniform(0.0, 0.6))


WEIGHTS: Final[dict[Operation, int]] = {
    admit: 24,
    admit_many: 6,
    delete: 16,
    delete_all: 3,
    restart_kubelet: 6,
    restart_kubelet_amid_discovery: 2,
    kill: 5,
    kill_amid_allocate: 4,
    terminate: 2,
    terminate_amid_allocate: 2,
    freeze: 3,
    plug: 4,
    unplug: 4,
    flap: 6,
    burst: 2,
    hook_raises: 3,
    hook_hangs: 2,
    garbage: 3,
    remove_socket: 3,
    full_disk: 2,
    few_descriptors: 2,
    two_plugins: 1,
    update: 5,
    reuse_amid_update: 2,
    reuse_amid_release: 2,
    move: 4,
    move_amid_release: 3,
    bad_disk: 5,
    bad_disk_and_stop: 3,
    slow_disk: 2,
    kill_at_a_step: 4,
    lose_files: 3,
    held_allocate: 2,
    restart_container: 4,
    unsynced_kubelet: 2,
    reboot: 2,
    reload: 2,
    sever: 3,
    step_clock: 2,
    attack_probes: 2,
    hurried_calls: 2,
    wait: 6,
}
