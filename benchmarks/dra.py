"""DRA drivers in a real cluster: kdp's, and one in Go on the upstream helper, beside one another.

etcd, API server and kubelet are the real ones. The driver in Go is the one of tests/node/peers/dra, plain and careful:
the plain one remembers nothing and has one CDI spec for all its devices; the careful one keeps a checkpoint and writes
a spec for each claim, as drivers in use do, and as kdp does. What must hold is judged against the plain one.

Neither of the two is helped by a poll: kdp's driver looks for devices when it starts and at SIGHUP.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from tests.node.nodekit import Cluster, Missing
from tests.node.nodekit.cluster import NODE
from tests.node.nodekit.tools import tool

from kdp.proto import dra_v1_pb2 as pb

from .claims import ClaimCaller
from .processes import REPOSITORY, memory, processor
from .table import Row, at_most, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .setting import Setting

__all__ = ["rows"]

SLICES: Final = "resource.k8s.io/v1/resourceslices"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

CALLS: Final = 20
"""Prepares of a round, each undone again."""

MANY: Final = 10_000
"""Devices of the large node."""

CALM: Final = 1.5
"""Seconds after a change in which a driver has written all that it is going to write."""

_WRITES: Final = re.compile(
    r'^apiserver_request_total\{[^}]*code="2..",[^}]*resource="resourceslices",scope="resource",'
    r'[^}]*verb="(POST|PUT|PATCH|DELETE)"[^}]*\} (\d+)',
    re.MULTILINE,
)
_BYTES: Final = re.compile(
    r'^apiserver_request_body_size_bytes_sum\{[^}]*resource="resourceslices"[^}]*\} ([\d.e+]+)', re.MULTILINE
)


@attrs.frozen
class _Driver:
    """One driver.

    Attributes:
        title: How the table calls it.
        name: The driver's name.
        options: More of its command line.
    """

    title: str
    name: str
    options: tuple[str, ...] = ()

    def command(self, count: int) -> list[str]:
        """Return its command line for so many devices."""
        if self is KDP:
            words = [os.fspath(Path(sys.executable).with_name("kdp")), "run", "benchmarks.programs.dra_devices:Devices"]
            return [*words, "--mode=dra", f"--node-name={NODE}", "--poll-interval=none", f"--set=count={count}"]
        return [os.fspath(tool("peer-dra")), f"-driver={self.name}", f"-count={count}", *self.options]


KDP: Final = _Driver("kdp", "kdp.example.com")
PLAIN: Final = _Driver("Go", "plain.example.com", ("-qps=-1",))
CAREFUL: Final = _Driver("careful Go", "careful.example.com", ("-qps=-1", "-careful"))
POLITE: Final = _Driver("Go as client-go is by itself", "polite.example.com")
"""With the limit of 5 requests a second that client-go has unless told otherwise; the others have none."""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure one after another, in one cluster."""
    try:
        tool("peer-dra")
        cluster = Cluster()
    except Missing as missing:
        yield Row("DRA driver", "skipped", note=str(missing))
        return
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            node = _Node(runner.run(stack.enter_async_context(cluster)))
            for measure in (_start, _prepare, _restart, _large):
                yield from runner.run(measure(node, setting))
        finally:
            runner.run(stack.aclose())


@attrs.define
class _Node:
    """The cluster's node, and the drivers on it."""

    cluster: Cluster
    count: int = 0

    async def start(self, driver: _Driver, count: int) -> str:
        """Start a driver; return its process's name."""
        self.count += 1
        process = f"{driver.name}-{self.count}"
        environment = [f"PYTHONPATH={REPOSITORY}", "PYTHONUNBUFFERED=1"]
        await self.cluster.spawn(process, "env", *environment, *driver.command(count))
        return process

    async def end(self, driver: _Driver, process: str) -> None:
        """End a driver, and remove its slices."""
        await self.cluster.terminate(process)
        await self.cluster.api("DELETE", f"/apis/{SLICES}?fieldSelector=spec.driver={driver.name}")

    def signal(self, process: str) -> None:
        """Let a driver publish another revision of its first device."""
        os.kill(self.cluster.pid(process), signal.SIGHUP)

    async def slices(self, driver: _Driver) -> list[dict[str, Any]]:
        found = await self.cluster.api("GET", f"/apis/{SLICES}?fieldSelector=spec.driver={driver.name}")
        return [each["spec"] for each in found["items"]]

    async def until_published(self, driver: _Driver, count: int, *, slices: int = 1, seconds: float = 60.0) -> float:
        """Wait until the pool is whole and has so many devices; return when that was.

        Args:
            driver: Whose.
            count: How many devices.
            slices: How many slices at least; more than one: their names alone are asked for until there are so many.
            seconds: The deadline.
        """
        at = 0.0

        async def is_so() -> bool:
            nonlocal at
            at = time.monotonic()
            if slices > 1 and len(await self.cluster.names(SLICES, fields=f"spec.driver={driver.name}")) < slices:
                return False
            found = await self.slices(driver)
            devices = sum(len(each.get("devices") or ()) for each in found)
            pools = [each["pool"] for each in found]
            is_whole = all(each == pools[0] and each["resourceSliceCount"] == len(pools) for each in pools)
            return devices == count and is_whole

        every = 0.005 if slices == 1 else 0.05
        await self.cluster.until(is_so, f"{driver.title} has published {count} devices", seconds=seconds, every=every)
        return at

    async def written(self) -> tuple[dict[str, int], int]:
        """Return how many writes of slices there have been, by verb, and how many bytes they had."""
        text = await self.cluster.metrics()
        writes: dict[str, int] = {}
        for verb, count in _WRITES.findall(text):
            writes[verb] = writes.get(verb, 0) + int(count)
        return writes, int(sum(map(float, _BYTES.findall(text))))

    async def claim(self, driver: _Driver, count: int) -> Any:
        """Make an allocated claim with the first devices of a driver, as the scheduler does; return the request."""
        name = f"{driver.name}-{count}"
        exactly = {"deviceClassName": "any", "count": count}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        made = await self.cluster.api("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
        place = {"request": "r", "driver": driver.name, "pool": NODE}
        results = [{**place, "device": f"w{number}"} for number in range(count)]
        made["status"] = {"allocation": {"devices": {"results": results}}}
        await self.cluster.api("PUT", f"{CLAIMS}/{name}/status", made)
        return pb.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])


# -- from the start to the slice ---------------------------------------------------------------------------------------


async def _start(node: _Node, setting: Setting) -> list[Row]:
    rounds, drivers = setting.rounds(9, 2), [KDP, PLAIN]
    took: dict[_Driver, list[float]] = {each: [] for each in drivers}
    shuffle = setting.random("dra start").shuffle
    for number in range(rounds + 1):
        shuffle(drivers)
        for driver in drivers:
            began = time.monotonic()
            process = await node.start(driver, 8)
            published = await node.until_published(driver, 8)
            if number:  # the first round makes the byte code
                took[driver].append(1e3 * (published - began))
            await node.end(driver, process)
    note = "kdp waits for the kubelet, which looks once a second, and publishes then; Go publishes at once"
    return [
        Row(f"DRA: process -> slice published, {each.title}", f"{spread(took[each], 0)} ms", note=note)
        for each in (KDP, PLAIN)
    ]


# -- Prepare, memory, one change ---------------------------------------------------------------------------------------


async def _prepare(node: _Node, setting: Setting) -> list[Row]:
    rounds, drivers = setting.rounds(30, 4), [KDP, PLAIN, CAREFUL]
    processes = {each: await node.start(each, 8) for each in drivers}
    callers: dict[_Driver, ClaimCaller] = {}
    made: list[Row] = []
    try:
        for each in drivers:
            await node.until_published(each, 8)
            claims = {count: await node.claim(each, count) for count in (1, 8)}
            callers[each] = ClaimCaller(node.cluster.paths.plugins_dir / each.name / "dra.sock", claims)
        shuffle = setting.random("dra prepare").shuffle
        for count in (1, 8):
            medians: dict[_Driver, list[float]] = {each: [] for each in drivers}
            for number in range(rounds + 1):
                shuffle(drivers)
                for each in drivers:
                    found = await asyncio.to_thread(callers[each].time, count, CALLS)
                    if number:
                        medians[each].append(1e3 * statistics.median(found))
            devices = "1 device" if count == 1 else f"{count} devices"
            for other in (PLAIN, CAREFUL):
                ratio = statistics.median(a / b for a, b in zip(medians[KDP], medians[other], strict=True))
                note = (
                    f"p50 {spread(medians[KDP], 2)} ms, {other.title} {spread(medians[other], 2)} ms; "
                    f"{rounds} rounds of {CALLS} claims each, interleaved"
                )
                name = f"DRA: Prepare, {devices}"
                if other is PLAIN:
                    made.append(at_most(name, ratio, 4.0, "x Go", digits=2, note=note))
                else:
                    made.append(Row(name, f"{ratio:.2f} x {other.title}", note=note))
        made += [await _changed(node, each, processes[each], 8) for each in (KDP, PLAIN)]
        made.append(
            at_most(
                "DRA: memory after that, RSS",
                memory(node.cluster.pid(processes[KDP])),
                80,
                "MB",
                note=_others(node, processes),
            )
        )
    finally:
        for caller in callers.values():
            caller.close()
        for each, process in processes.items():
            await node.end(each, process)
    return made


def _others(node: _Node, processes: dict[_Driver, str]) -> str:
    others = (
        f"{each.title} {memory(node.cluster.pid(name)):.1f} MB" for each, name in processes.items() if each is not KDP
    )
    return f"8 devices; {', '.join(others)}"


async def _changed(node: _Node, driver: _Driver, process: str, count: int) -> Row:
    """Let one device change, and count what is written."""
    before, _ = await node.written()
    versions = {each["metadata"]["resourceVersion"] for each in await _items(node, driver)}
    began = time.monotonic()
    node.signal(process)

    async def is_seen() -> bool:
        return {each["metadata"]["resourceVersion"] for each in await _items(node, driver)} != versions

    await node.cluster.until(is_seen, f"{driver.title} publishes another revision", every=0.01)
    took = time.monotonic() - began
    await asyncio.sleep(CALM)
    after, _ = await node.written()
    writes = {verb: number - before.get(verb, 0) for verb, number in after.items() if number != before.get(verb, 0)}
    figure = ", ".join(f"{number} {verb}" for verb, number in writes.items()) or "nothing"
    judged = driver is KDP
    return Row(
        f"DRA: one device of {count:,} changes, {driver.title} writes",
        figure,
        "1 PUT" if judged else "",
        figure == "1 PUT" if judged else None,
        f"SIGHUP -> in the API server {1e3 * took:.0f} ms",
    )


async def _items(node: _Node, driver: _Driver) -> list[dict[str, Any]]:
    found = await node.cluster.api("GET", f"/apis/{SLICES}?fieldSelector=spec.driver={driver.name}")
    return list(found["items"])


# -- the kubelet restarts ----------------------------------------------------------------------------------------------


async def _restart(node: _Node, setting: Setting) -> list[Row]:
    """The kubelet deletes all slices of its node when it starts; both drivers have them deleted at the same time."""
    rounds, drivers = setting.rounds(5, 1), (KDP, PLAIN)
    processes = {each: await node.start(each, 8) for each in drivers}
    took: dict[_Driver, list[float]] = {each: [] for each in drivers}
    try:
        for each in drivers:
            await node.until_published(each, 8)
        for _ in range(rounds):
            waiting = asyncio.gather(*(_wiped(node, each) for each in drivers))
            await asyncio.sleep(0.1)
            await node.cluster.restart()
            for each, seconds in zip(drivers, await waiting, strict=True):
                took[each].append(seconds)
            await asyncio.sleep(CALM)
    finally:
        for each, process in processes.items():
            await node.end(each, process)
    ratio = statistics.median(a / b for a, b in zip(took[KDP], took[PLAIN], strict=True))
    note = f"{spread(took[KDP], 2)} s, Go {spread(took[PLAIN], 2)} s; {rounds} restarts, from the slice's deletion on"
    return [at_most("DRA: kubelet restart -> slices back", ratio, 0.2, "x Go", digits=3, note=note)]


async def _wiped(node: _Node, driver: _Driver) -> float:
    """Wait until a driver's slice is gone and there again; return the seconds between the two."""
    gone = 0.0

    async def is_back() -> bool:
        nonlocal gone
        found = await node.slices(driver)
        if not found and not gone:
            gone = time.monotonic()
        return bool(gone and found)

    await node.cluster.until(
        is_back, f"the slice of {driver.title} is deleted, and there again", seconds=120, every=0.01
    )
    return time.monotonic() - gone


# -- a large node ------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Published:
    slices: int
    writes: int
    bytes: int
    seconds: float
    memory: float
    processor: float


async def _large(node: _Node, setting: Setting) -> list[Row]:
    rounds, drivers = setting.rounds(3, 1), [KDP, PLAIN]
    found: dict[_Driver, list[_Published]] = {each: [] for each in (*drivers, POLITE)}
    changed: list[Row] = []
    shuffle = setting.random("dra large").shuffle
    for number in range(rounds):
        shuffle(drivers)
        is_last = number == rounds - 1
        for each in (*drivers, *([POLITE] if is_last else ())):
            before, before_bytes = await node.written()
            began = time.monotonic()
            process = await node.start(each, MANY)
            at = await node.until_published(each, MANY, slices=MANY // 64, seconds=180)
            after, after_bytes = await node.written()
            found[each].append(
                _Published(
                    slices=len(await node.slices(each)),
                    writes=sum(after.values()) - sum(before.values()),
                    bytes=after_bytes - before_bytes,
                    seconds=at - began,
                    memory=memory(node.cluster.pid(process)),
                    processor=processor(node.cluster.pid(process)),
                )
            )
            if is_last and each is not POLITE:
                changed.append(await _changed(node, each, process, MANY))
            await node.end(each, process)
    ours, theirs = found[KDP], found[PLAIN]
    made: list[Row] = []
    for title, unit, digits in (("slices", "", 0), ("writes", "", 0), ("bytes", "MB", 2), ("seconds", "s", 2)):
        scale = 2**20 if unit == "MB" else 1
        mine, other = ([getattr(each, title) / scale for each in of] for of in (ours, theirs))
        ratio = statistics.median(a / b for a, b in zip(mine, other, strict=True))
        space = f" {unit}" if unit else ""
        note = f"{spread(mine, digits)}{space}, Go {spread(other, digits)}{space}; {rounds} rounds"
        if title == "seconds":
            busy = (statistics.median(each.processor for each in of) for of in (ours, theirs))
            note += "; from the start of the process; processor time {:.1f} s, Go {:.1f} s".format(*busy)
            note += f"; {POLITE.title}: {found[POLITE][0].seconds:.1f} s"
        made.append(at_most(f"DRA: {MANY:,} devices published, {title}", ratio, 1.5, "x Go", digits=2, note=note))
    made += sorted(changed, key=lambda row: row.must, reverse=True)
    note = f"Go {statistics.median(each.memory for each in theirs):.1f} MB"
    figure = f"{statistics.median(each.memory for each in ours):.1f} MB"
    made.append(Row(f"DRA: memory with {MANY:,} devices, RSS", figure, note=note))
    return made
