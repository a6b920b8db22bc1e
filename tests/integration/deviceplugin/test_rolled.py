"""A node is rolled to this version and back: neither version forgets an allocation of the other, or releases it twice.

The other version is the last one without a journal of allocations. Its source comes from the repository's history.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import anyio
import attrs
import pytest
from benchmarks.against import other_tree

import kdp
from kdp.storage.journal import read
from kdp.testing import AdmissionError, AdmittedPod, ContainerStartError, Pod, SimulatedKubelet
from kdp_testkit.patience import PATIENCE

from .helpers import RESOURCE, Figure, registers, until
from .test_release import QUICK

pytestmark = [pytest.mark.slow, pytest.mark.repository]

OLD = "826155c7"
"""The last commit before the journal: each allocation replaces the file."""

PROGRAM = Path(__file__).with_name("rolled_plugin.py")
WIDGETS = 12


@pytest.fixture(scope="module")
def trees() -> Iterator[dict[str, Path]]:
    """The source folder of each version."""
    try:
        with other_tree(OLD) as tree:
            yield {"old": tree / "src", "new": Path(kdp.__file__).parents[1]}
    except SystemExit as missing:
        pytest.skip(f"the history lacks the version to roll from: {missing}")


@final
class Node:
    """A node with pods, on which the vendor's program runs with one version or the other.

    An allocation is known by the number in its state, which its container has in the environment.

    Attributes:
        admitted: Each pod that was admitted, by the number of its allocation.
        pods: Those that live.
    """

    def __init__(self, kubelet: SimulatedKubelet, folder: Path, release_policy: str) -> None:
        self.admitted: dict[str, AdmittedPod] = {}
        self.pods: dict[str, AdmittedPod] = {}
        self._kubelet = kubelet
        self._state = folder / "state"
        self._journal = folder / "journal"
        options = {
            "kubelet_root": str(kubelet.paths.device_plugin_dir.parent),
            "device_plugin_dir": str(kubelet.paths.device_plugin_dir),
            "state_dir": str(self._state),
            "release_policy": release_policy,
        }
        arguments = [str(self._journal), str(WIDGETS), json.dumps(options), json.dumps(attrs.asdict(QUICK))]
        self._command = [sys.executable, str(PROGRAM), *arguments]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def files(self) -> set[Path]:
        """The files of allocations, also those that were set aside.

        Without hidden drafts: the old version leaves one if it is stopped while it writes.
        """
        return {*self._state.glob("[!.]*.json*")}

    @property
    def has_journal(self) -> bool:
        """Whether a file has a line for each allocation. The old version writes one line for all."""
        return any(path.read_bytes().count(b"\n") > 1 for path in self.files)

    # -- processes -----------------------------------------------------------------------------------------------------

    @contextmanager
    def processes(self) -> Generator[None]:
        """Kill the processes that are left at the end."""
        try:
            yield
        finally:
            for process in self._processes:
                process.kill()
                process.wait(PATIENCE)

    async def start(self, source: Path) -> subprocess.Popen[bytes]:
        """Start the program with a version, and wait until the kubelet has its list."""
        seen = len(registers(self._kubelet))
        process = self._spawn(source)
        await self._kubelet.until(
            lambda: len(registers(self._kubelet)) > seen and self._has_streams, streaming=RESOURCE
        )
        return process

    @property
    def _has_streams(self) -> bool:
        """Whether the kubelet has a stream of each process that lives."""
        living = [process for process in self._processes if process.returncode is None]
        return self._kubelet.streams(RESOURCE) == len(living)

    def _spawn(self, source: Path) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KDP_")}
        self._processes.append(subprocess.Popen(self._command, env={**kept, "PYTHONPATH": str(source)}))
        return self._processes[-1]

    async def end(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """End a process, and wait until the kubelet has noticed that.

        First, no file has a released allocation any more: a process that ends between the hook and the disk leaves it.
        """
        await until(lambda: {*self._saved()}.isdisjoint(self.numbers("released")), story=lambda: f"{self._saved()}")
        process.send_signal(number)
        await until(lambda: process.poll() is not None)
        assert process.returncode == (0 if number is signal.SIGTERM else -number)
        await self._kubelet.until(lambda: self._has_streams)

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def admit(self, *widgets: int) -> list[str]:
        """Admit pods that ask for these numbers of widgets, and start their containers."""
        numbers = [await self.admit_only(each) for each in widgets]
        for number in numbers:
            await self.start_container(number)
        return numbers

    async def admit_only(self, widgets: int | None = None) -> str:
        """Admit a pod as soon as the kubelet has enough widgets for it. `None`: it asks for all that no pod holds."""
        count = WIDGETS - sum(len(pod.devices(RESOURCE)) for pod in self.pods.values()) if widgets is None else widgets
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    pod = await self._kubelet.admit(Pod.asking({RESOURCE: count}), start=False)
                except AdmissionError:
                    await anyio.sleep(0.02)
                    continue
                number = pod.reply().envs["NUMBER"]
                self.pods[number] = self.admitted[number] = pod
                return number

    async def start_container(self, number: str) -> None:
        """Start the container of a pod, again until it succeeds: its widgets may wait for a scrub."""
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    await self._kubelet.start_container(self.pods[number])
                    return
                except ContainerStartError:
                    await anyio.sleep(0.05)

    async def delete(self, *numbers: str) -> None:
        """Delete pods."""
        assert {*numbers}.isdisjoint(self.numbers("released"))
        for number in numbers:
            await self._kubelet.delete(self.pods.pop(number))

    # -- observations --------------------------------------------------------------------------------------------------

    def said(self, *hooks: str) -> list[dict[str, Any]]:
        """Return the lines of these hooks, in the order of the calls."""
        lines = [json.loads(line) for line in self._journal.read_text().splitlines()]
        return [line for line in lines if line["hook"] in hooks]

    def numbers(self, hook: str) -> list[str | None]:
        """Return the number in each call of a hook; `None` if the call has no state."""
        return [line["state"].get("number") for line in self.said(hook)]

    async def released(self) -> None:
        """Wait until the allocation of each deleted pod is released."""
        ended = self.admitted.keys() - self.pods.keys()
        await until(
            lambda: ended <= {*self.numbers("released")}, story=lambda: f"{ended - {*self.numbers('released')}}"
        )

    async def saved(self, *, listed: bool) -> None:
        """Wait until the files have exactly the allocations of the living pods.

        Args:
            listed: Whether a list must have named each of them. Otherwise, its release waits for other pods' end.
        """

        def are_saved() -> bool:
            entries = self._saved()
            return entries.keys() == self.pods.keys() and (not listed or all(each["seen"] for each in entries.values()))

        await until(are_saved, story=lambda: f"{[*self.pods]}, but the files have {self._saved()}")

    def _saved(self) -> dict[str | None, Mapping[str, Any]]:
        """Return the saved allocations by number; `None` if one has no state."""
        records: dict[str, Mapping[str, Any]] = {}
        for path in self.files:
            with suppress(FileNotFoundError):  # its last allocation has just been released
                records |= read(path.read_bytes(), field="allocations").records
        return {record["state"].get("number"): record for record in records.values()}


@pytest.mark.parametrize("way", ["stopped", "killed", "beside"])
@pytest.mark.parametrize("release_policy", ["notify", "scrub"])
@pytest.mark.parametrize("direction", ["forward", "back"])
async def test_each_allocation_is_released_once_with_its_state(
    kubelet: SimulatedKubelet,
    tmp_path: Path,
    trees: dict[str, Path],
    direction: str,
    release_policy: str,
    way: str,
    figure: Figure,
) -> None:
    source, target = (trees["old"], trees["new"]) if direction == "forward" else (trees["new"], trees["old"])
    node = Node(kubelet, tmp_path, release_policy)
    with node.processes():
        first = await node.start(source)
        early, one, other, *stay = await node.admit(3, 2, 1, 2, 1)
        await node.saved(listed=True)
        await node.delete(early)
        await node.released()
        await node.saved(listed=True)
        stay += await node.admit(1)  # perhaps no list names it before the change
        await node.saved(listed=False)
        files = node.files
        assert node.has_journal == (source == trees["new"])  # so the target reads the format of the other version
        if way == "beside":
            second = await node.start(target)
            brief, _ = await node.admit(4, 1)  # all that are free, also widgets that the first process has released
            await node.saved(listed=True)
            await node.delete(one, brief)  # each of another process
            await node.released()
            await node.saved(listed=True)
            await node.delete(other)
            full = await node.admit_only()  # also a widget that the first process may not have released yet
            await node.end(first, signal.SIGTERM)
        else:
            await node.end(first, signal.SIGTERM if way == "stopped" else signal.SIGKILL)
            await node.delete(one, other)
            second = await node.start(target)
            full = await node.admit_only()
        await node.start_container(full)
        await until(lambda: files.isdisjoint(node.files))
        for number in stay:
            await node.start_container(number)
        await node.delete(full, stay[0])
        await node.admit(1, 2, 1, 2)
        await node.delete(*node.pods)
        await node.released()
        await node.end(second, signal.SIGTERM)

    allocated = {line["state"]["number"]: line for line in node.said("allocate")}
    count = Counter(node.numbers("released"))
    figure(f"rolled {direction}, {release_policy}, {way}: released of {len(allocated)}", count.total(), "allocations")
    assert count == dict.fromkeys(node.admitted, 1)
    assert {number: tuple(line["ids"]) for number, line in allocated.items()} == {
        number: pod.devices(RESOURCE) for number, pod in node.admitted.items()
    }
    versions = [Path(line["kdp"]).parents[1] for line in allocated.values()]
    assert (versions[:6], versions[-4:]) == ([source] * 6, [target] * 4)
    for line in node.said("prepare_container", "released"):
        own = allocated[line["state"]["number"]]
        assert (line["ids"], line["state"]) == (own["ids"], own["state"])
    prepared = node.said("prepare_container")
    assert {line["state"]["number"] for line in prepared} == {*allocated}
    assert {*stay} <= {line["state"]["number"] for line in prepared if Path(line["kdp"]).is_relative_to(target)}
    if release_policy == "scrub":
        assert_scrubbed(node.said("prepare_container", "released"))
    assert node.files == set()


def assert_scrubbed(lines: list[dict[str, Any]]) -> None:
    """Check that no container starts on a widget between another container's start and that one's release."""
    users: dict[str, str] = {}
    for line in lines:
        number = line["state"]["number"]
        for device_id in line["ids"]:
            if line["hook"] == "released":
                users.pop(device_id, None)
            else:
                assert users.setdefault(device_id, number) == number, device_id
