"""`World`: a node with a kubelet, a device plugin, and pods."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, final

import anyio
import attrs
from typing_extensions import override

from kdp.allocation.sharing import base_id
from kdp.deviceplugin.tracking.store import SAVE_PATIENCE
from kdp.kubelet import KubeletPaths
from kdp.testing import AdmissionError, AdmittedContainer, AdmittedPod, ContainerStartError, Pod, ScenarioError

from .account import Account, Saved, differences, saved_in
from .judge import RELEASE_SECONDS, SAID_SECONDS, Judge, Seen
from .node import LOST_FILES, RETRY_SECONDS, Node, answers
from .plugin import OTHER_RESOURCE, RESOURCE, node_of

LASTING = 0.3
"""How many of the peaces last until everything is released."""


class Kubelet(Protocol):
    """What the world needs of a kubelet, simulated or real."""

    @property
    def paths(self) -> KubeletPaths: ...
    async def admit(self, pod: Pod, /, *, start: bool) -> AdmittedPod: ...
    async def start_container(self, pod: Pod, /) -> AdmittedContainer: ...
    async def delete(self, pod: Pod, /) -> None: ...
    async def restart(self, *, reboot: bool = False) -> object: ...
    async def readmit(self) -> Mapping[str, AdmittedPod | AdmissionError] | None: ...


@final
@attrs.frozen(kw_only=True)
class Variant:
    """How a plugin is set up in a play.

    Attributes:
        scrubs: Whether devices are scrubbed between two pods.
        resources: The resources.
        replicas: How many replicas each device has; `None` if devices are not shared.
    """

    scrubs: bool = False
    resources: tuple[str, ...] = (RESOURCE,)
    replicas: int | None = None

    @classmethod
    def drawn(cls, rng: random.Random) -> Variant:
        """Draw a variant."""
        resources = rng.choice([(RESOURCE,), (RESOURCE, OTHER_RESOURCE)])
        return cls(scrubs=rng.random() < 0.4, resources=resources, replicas=rng.choice([None, None, None, 2]))

    @property
    def options(self) -> dict[str, object]:
        """The options of `kdp.run`."""
        policy = {"release_policy": "scrub"} if self.scrubs else {}
        return {**policy, **({} if self.replicas is None else {"replicas": self.replicas})}


@final
class World(Node):
    """One node with a kubelet and a device plugin.

    Args:
        directory: An empty directory of its own.
        kubelet: The kubelet, which runs.
        look: Returns what can be seen of the toys in it.
        rng: All choices come from it.
        environment: Of the plugin's process, beside this process's own.
        variant: How the plugin is set up.

    Attributes:
        pods: Those that live.
        variant: The argument.
    """

    program = "tests.chaos.plugin"

    def __init__(
        self,
        directory: Path,
        kubelet: Kubelet,
        look: Callable[[], Awaitable[Seen]],
        rng: random.Random,
        environment: Mapping[str, str] | None = None,
        *,
        variant: Variant | None = None,
    ) -> None:
        self.kubelet = kubelet
        self.variant = variant or Variant()
        self._look = look
        self.pods: list[AdmittedPod] = []
        self._unstarted: set[str] = set()
        self._judge = Judge(scrubs=self.variant.scrubs, shares=self.variant.replicas is not None)
        super().__init__(directory, rng, environment)

    @property
    @override
    def judge(self) -> Judge:
        return self._judge

    @property
    @override
    def _options(self) -> Mapping[str, object]:
        root = self.kubelet.paths.device_plugin_dir.parent
        directories = {
            "kubelet_root": str(root),
            "device_plugin_dir": f"{root}/device-plugins",
            "state_dir": str(self._state),
            "host_root": str(self.tree.root),
        }
        return {**directories, **self.variant.options}

    @override
    def _resource_for(self, name: str) -> str:
        return self.rng.choice(self.variant.resources)

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
        if answering > len(self.variant.resources):
            return f"{answering} sockets answer"
        return (await self._look()).differs(self.hardware, moved=self._moved)

    @property
    def _moved(self) -> set[str]:
        """The toys whose card a container has under another name, or that have another card than it has."""
        found: set[str] = set()
        for container in self.judge.unreleased:
            now = {name for name, card in self.cards.items() if node_of(card) in container.nodes}
            ids = {base_id(device) for device in container.ids}
            given = {name for name in now & ids if self.resources[name] == container.resource}
            if now != ids or given != ids:
                found |= (now | ids) - given
        return found

    @override
    def _hear(self, said: dict[str, Any]) -> None:
        match said["hook"]:
            case "allocate":
                # An Allocate waits for the intent for a second.
                is_excused = not self.can_save or self.noise > SAVE_PATIENCE
                self.judge.allocated(
                    said["number"], said["ids"], said["nodes"], is_intended=said["is_intended"] or is_excused
                )
            case hook:
                self.judge.counted(said["number"], said["ids"], said["calls"], hook=hook)
                if said["has_failed"]:
                    return
                if hook == "prepare_container":
                    self.judge.prepared(said["number"], said["ids"])
                else:
                    self.judge.released(said["number"], said["ids"], said["nodes"])

    # -- memory and disk -----------------------------------------------------------------------------------------------

    async def remove_files(self) -> None:
        """Remove the state directory, unless a process is too busy to tell what it remembers."""
        accounts = [await Account.of(each.channel) for each in self.living_instances]
        if None in accounts:
            return
        self.causes.add(LOST_FILES)
        self.judge.files_removed({number for each in accounts if each for _, number, _ in each.owed.values()})
        for path in [*self._state.glob("*"), *self._state.glob(".*")] if self._state.is_dir() else ():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._state.rmdir()

    async def judge_files(self, seconds: float | None) -> None:
        """Judge whether memory and disk agree, and what the plugin says of it (rule 9).

        Args:
            seconds: In which both must agree. `None` if they need not, because the disk is bad.
        """
        began = quiet_since = time.monotonic()
        limit = SAID_SECONDS + self.noise
        until = began + (limit if seconds is None else seconds)
        found = ["nothing was compared"]
        while True:
            now = time.monotonic()
            accounts = [await Account.of(each.channel) for each in self.living_instances]
            known = [each for each in accounts if each is not None and each.has_adopted]
            if not known or len(known) < len(accounts) or (saved := self._on_disk()) is None:
                quiet_since = now  # nothing can be compared
            else:
                disk = saved.entries
                found = differences({uid: entry for each in known for uid, entry in each.owed.items()}, disk)
                problems = [each.problem for each in known if each.problem is not None]
                if bool(found) == bool(problems) or (seconds is None and problems):  # a bad disk is a problem by itself
                    quiet_since = now
                    if not found and seconds is not None:
                        self.heard()
                        if forgotten := self.judge.forgotten({number for _, number, _ in disk.values()}):
                            self.judge.broken(3, f"no process and no file has {forgotten[:3]} any more")
                        self.judge.saved({number: calls for _, number, calls in disk.values()}, listed=saved.listed)
                        return
                # If both agree again, the problem ends with the next try.
                elif now - quiet_since > limit + (0.0 if found or self.can_save else RETRY_SECONDS):
                    says = f"the plugin says {problems[0]!r}" if problems else "the plugin names no problem"
                    self.judge.broken(
                        9, f"for {now - quiet_since:.1f} s, memory and disk differ in {found}, and {says}"
                    )
                    return
            if now >= until:
                break
            await anyio.sleep(0.02)
        if seconds is not None:
            self.judge.broken(9, f"{seconds:.1f} s after all disturbances ended: {found[:3]}")

    @override
    def _could_not_save(self, *, by_force: bool) -> bool:
        if saved := self._on_disk():
            self.judge.survived([number for _, number, _ in saved.entries.values()])
            self.judge.intended(saved.intents, {name: node_of(card) for name, card in self.cards.items()})
        return super()._could_not_save(by_force=by_force)

    def _on_disk(self) -> Saved | None:
        try:
            return saved_in(self._state)
        except (OSError, ValueError):
            return None

    @override
    async def _judge_peace(self, saved_seconds: float) -> None:
        until = time.monotonic() + self.ready_seconds + self.noise
        for pod in [each for each in self.pods if each.pod.uid in self._unstarted and self._can_start(each)]:
            while not self.judge.violations and not await self._start(  # noqa: ASYNC110 - the start is tried again
                pod, is_peace=time.monotonic() >= until
            ):
                await anyio.sleep(0.05)
        await self.judge_files(saved_seconds)
        if self.rng.random() < LASTING and not self.judge.violations:
            await self._judge_releases()

    def _can_start(self, pod: AdmittedPod) -> bool:
        """Return whether a pod's toys are there: what is gone cannot be scrubbed, and the pod waits for that."""
        return all(name in self.hardware and name not in self._moved for name in map(base_id, self.devices_of(pod)))

    async def _judge_releases(self) -> None:
        """Judge whether all is released soon that pods have given back.

        While other pods live, that is demanded only of devices which a list has named: a pod that was admitted at the
        same time may hold the other devices.
        """

        def due() -> list[str]:
            return self.judge.due(all_=not self.pods, there=self.hardware)

        with anyio.move_on_after(RELEASE_SECONDS + self.noise):
            while due():
                await self._news.wait()
        if lost := due():
            text = f"{RELEASE_SECONDS:g} s of peace have released none of {lost[:3]} ({len(lost)})"
            self.judge.broken(3, text + await self._beliefs(str(lost)))

    @override
    async def _beliefs(self, problem: str) -> str:
        accounts = [await Account.of(each.channel) for each in self.living_instances]
        known = [each for each in accounts if each is not None]
        found = [
            each.believed[number]
            for each in known
            for ids, number, _ in each.owed.values()
            if any(base_id(device) in problem for device in ids)
        ]
        return f"; the plugin has {found}" if found else ""

    # -- pods ----------------------------------------------------------------------------------------------------------

    @property
    def held_cards(self) -> set[int]:
        """The cards that pods have."""
        return {card for card in self.cards.values() if node_of(card) in self.judge.held_nodes}

    def toys_of(self, resource: str) -> list[str]:
        """Return the toys of a resource."""
        return [name for name, other in self.resources.items() if other == resource]

    def devices_of(self, pod: AdmittedPod) -> list[str]:
        """Return the devices that a pod has."""
        return [device for resource in self.variant.resources for device in sorted(pod.devices(resource))]

    async def admit(self, count: int) -> AdmittedPod | None:
        """Admit a pod that asks for so many toys of a resource, and judge what it was given."""
        resource = self.rng.choice(self.variant.resources)
        toys = self.toys_of(resource)
        if count > len(toys):
            return None
        could_save = self.can_save
        try:
            admitted = await self.kubelet.admit(Pod.asking({resource: count}), start=False)
        except AdmissionError as error:
            held = sum(len(pod.devices(resource)) for pod in self.pods)
            healthy = sum(self.hardware[name] for name in toys) * (self.variant.replicas or 1)
            scarce = {"too few were free"} if held + count > healthy else set[str]()
            scarce |= {"a card has another name"} if self._moved else set()
            self._judge_refusal(error, scarce)
            return None
        except ScenarioError:
            return None  # there is no kubelet
        self.heard()
        self.pods.append(admitted)
        ids, reply = sorted(admitted.devices(resource)), admitted.reply()
        envs, nodes = reply.envs, [node.host_path for node in reply.devices]
        if not envs:  # a real kubelet tells the reply to nobody before the container starts
            envs, nodes = self.judge.replied(ids)
        saved = could_save and self.can_save
        self.judge.admitted(admitted.pod.uid, ids, envs, nodes, resource=resource, saved=saved)
        await self._start(admitted)
        return admitted

    def _judge_refusal(self, error: Exception, causes: set[str]) -> None:
        # A kubelet may notice an instance's end after its successor has connected, and takes that for stopped.
        late = {"the kubelet noticed an end late"} if "has been stopped" in str(error) else set[str]()
        self.judge.refused(str(error), causes=sorted(self.causes | causes | late))

    async def restart_container(self, pod: AdmittedPod) -> None:
        """Start a pod's container again."""
        await self._start(pod)

    async def _start(self, pod: AdmittedPod, *, is_peace: bool = False) -> bool:
        """Start a pod's container, and return whether that succeeded. In peace there is no cause for a failure."""
        self._unstarted.add(pod.pod.uid)
        try:
            given = await self.kubelet.start_container(pod.pod)
        except ContainerStartError as error:
            self.heard()
            if is_peace:
                self.judge.refused(str(error), causes=())
            else:
                self._judge_refusal(error, {"an earlier pod has the device until its release"})
            return False
        except ScenarioError:
            return is_peace  # there is no kubelet, or it does not know the pod
        self.heard()
        self._unstarted.discard(pod.pod.uid)
        if pod in self.pods:
            # In an update, the new process remembers what it has no file for.
            is_saved = self.can_save and len(self.living_instances) == 1
            self.judge.started(pod.pod.uid, given.reply.envs, saved=is_saved)
        return True

    async def delete(self, pod: AdmittedPod) -> None:
        """Delete a pod."""
        self.pods.remove(pod)
        self._unstarted.discard(pod.pod.uid)
        self.judge.leaving(pod.pod.uid)
        with contextlib.suppress(ScenarioError):  # the kubelet has refused it after a restart
            await self.kubelet.delete(pod.pod)

    async def restart_kubelet(self, *, without_pods: float = 0.0, reboot: bool = False) -> None:
        """Restart the kubelet, which admits its pods again.

        Args:
            without_pods: For how many seconds it knows no pods.
            reboot: Whether the node restarts.
        """
        self.causes.add("the kubelet was restarted")
        await self.kubelet.restart(reboot=reboot)
        await anyio.sleep(without_pods)
        for pod in list(self.pods):
            try:
                await self.kubelet.admit(pod.pod, start=False)
            except AdmissionError:
                self._forget(pod.pod.uid)
            except ScenarioError:
                continue
        with contextlib.suppress(ScenarioError):
            await self.kubelet.readmit()
        if reboot:
            self._unstarted |= {pod.pod.uid for pod in self.pods}

    async def reboot(self) -> None:
        """Let the node boot again: processes end, files stay, and no container runs."""
        await self.kill()
        self.tree.boot(self.rng)
        await self.restart_kubelet(reboot=True)

    def _forget(self, uid: str) -> None:
        self.pods = [pod for pod in self.pods if pod.pod.uid != uid]
        self._unstarted.discard(uid)
        self.judge.leaving(uid)

    @override
    async def end(self) -> None:
        """Delete all pods, wait until all is released, stop the plugin, and judge what is left."""
        await self.settle()
        while self.pods:
            await self.delete(self.pods[-1])
        await self._judge_releases()
        await self.terminate()
        await self.start()  # it cleans up what killed ones have left
        await self.settle()
        await self.terminate()
        if left := [path.name for path in self.sockets]:
            self.judge.broken(7, f"after its end there are the sockets {sorted(left)}")
