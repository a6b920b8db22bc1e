"""`World`: a node with a kubelet, a device plugin, and pods."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, final

import anyio
from typing_extensions import override

from kdp.kubelet import KubeletPaths
from kdp.testing import AdmissionError, AdmittedPod, Pod, ScenarioError

from .judge import Judge, Seen
from .node import FULL_DISK, NO_DESCRIPTORS, Node, answers
from .plugin import RESOURCE


class Kubelet(Protocol):
    """What the world needs of a kubelet, simulated or real."""

    @property
    def paths(self) -> KubeletPaths: ...
    async def admit(self, pod: Pod, /) -> AdmittedPod: ...
    async def delete(self, pod: Pod, /) -> None: ...
    async def restart(self) -> object: ...
    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError] | None: ...


@final
class World(Node):
    """One node with a kubelet and a device plugin.

    Args:
        directory: An empty directory of its own.
        kubelet: The kubelet, which runs.
        look: Returns what can be seen of the toys in it.
        rng: All choices come from it.
        environment: Of the plugin's process, beside this process's own.

    Attributes:
        pods: Those that live.
    """

    program = "tests.chaos.plugin"

    def __init__(
        self,
        directory: Path,
        kubelet: Kubelet,
        look: Callable[[], Awaitable[Seen]],
        rng: random.Random,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kubelet = kubelet
        self._look = look
        self.pods: list[AdmittedPod] = []
        self._judge = Judge()
        super().__init__(directory, rng, environment)

    @property
    @override
    def judge(self) -> Judge:
        return self._judge

    @property
    @override
    def _arguments(self) -> list[str]:
        root = self.kubelet.paths.device_plugin_dir.parent
        return [str(self._toys), str(self._journal[1]), str(root), str(self._state)]

    @property
    @override
    def sockets(self) -> list[Path]:
        directory = self.kubelet.paths.device_plugin_dir
        return [path for path in directory.iterdir() if path.is_socket() and path.name != "kubelet.sock"]

    @property
    def is_serving(self) -> bool:
        """Whether one of the plugin's sockets answers."""
        return any(map(answers, self.sockets))

    @override
    async def _wrong(self) -> str | None:
        answering = sum(map(answers, self.sockets))
        return f"{answering} sockets answer" if answering > 1 else (await self._look()).differs(self.hardware)

    @override
    def _hear(self, said: dict[str, Any]) -> None:
        hear = self.judge.allocated if said["hook"] == "allocate" else self.judge.released
        hear(said["number"], said["ids"])

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def admit(self, count: int) -> None:
        """Admit a pod that asks for so many toys, and judge what it was given."""
        if count > len(self.hardware):
            return
        try:
            admitted = await self.kubelet.admit(Pod.asking({RESOURCE: count}))
        except AdmissionError as error:
            held = sum(len(pod.devices(RESOURCE)) for pod in self.pods)
            scarce = {"too few were free"} if held + count > sum(self.hardware.values()) else set[str]()
            # A kubelet may notice an instance's end after its successor has connected, and takes that for stopped.
            late = {"the kubelet noticed an end late"} if "has been stopped" in str(error) else set[str]()
            self.judge.refused(str(error), causes=sorted(self.causes | scarce | late))
            return
        except ScenarioError:
            return  # there is no kubelet
        self.heard()
        self.pods.append(admitted)
        ids, envs = sorted(admitted.devices(RESOURCE)), admitted.reply().envs
        self.judge.admitted(admitted.pod.uid, ids, envs, saved=self.causes.isdisjoint({FULL_DISK, NO_DESCRIPTORS}))

    async def delete(self, pod: AdmittedPod) -> None:
        """Delete a pod."""
        self.pods.remove(pod)
        self.judge.leaving(pod.pod.uid)
        with contextlib.suppress(ScenarioError):  # the kubelet has refused it after a restart
            await self.kubelet.delete(pod.pod)

    async def restart_kubelet(self) -> None:
        """Restart the kubelet, which admits its pods again."""
        self.causes.add("the kubelet was restarted")
        await self.kubelet.restart()
        for uid, found in (await self.kubelet.readmit() or {} if self.pods else {}).items():
            if isinstance(found, AdmissionError):
                self.pods = [pod for pod in self.pods if pod.pod.uid != uid]
                self.judge.leaving(uid)

    @override
    async def end(self) -> None:
        """Delete all pods, wait until all is released, stop the plugin, and judge what is left."""
        await self.settle()
        while self.pods:
            await self.delete(self.pods[-1])
        with anyio.move_on_after(60.0):
            while self.judge.lost:
                await self._news.wait()
        if lost := self.judge.lost:
            self.judge.broken(3, f"{len(lost)} allocations were never released, such as {lost[:3]}")
        await self.terminate()
        await self.start()  # it cleans up what killed ones have left
        await self.settle()
        await self.terminate()
        if left := [path.name for path in self.sockets]:
            self.judge.broken(7, f"after its end there are the sockets {sorted(left)}")
