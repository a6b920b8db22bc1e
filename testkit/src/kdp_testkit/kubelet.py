"""`SimulatedKubelet`: a kubelet's device-plugin side, for tests, without a cluster and without root.

Real gRPC over real unix sockets in a temporary directory, and behind them a model of the kubelet's device manager,
plugin watcher and pod admission: it refuses what the kubelet refuses, in its words, and remembers what it
remembers. It is no recorder of calls: a test that passes here says something about a node. Where versions differ
a profile decides (`kdp.testing.PROFILES`).

What outlives its process is in `kubelet_core` (directories, log, starts and ends) and in `workload` (pods, node
object). What dies with its process is `kubelet_process.KubeletProcess`.
"""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from typing_extensions import override

from .devicemanager.kubelet_core import KubeletCore
from .faults import Faults
from .lifetime import Entered
from .patience import PATIENCE
from .protocol.pods import AdmissionError, AdmittedContainer, AdmittedPod, KubeletPanic, Pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from contextlib import AbstractAsyncContextManager

    from kdp.deviceplugin import PluginManager
    from kdp.hardware import Host
    from kdp.model.backend import DeviceBackend


class SimulatedKubelet(KubeletCore):
    """A kubelet to test device plugins with.

    Used as an async context manager; it is started on entry and crashes on exit. Everything must be called from
    the event loop that entered it, which it does not block. asyncio only, because gRPC is.

    What cannot happen on a node it refuses with `ScenarioError` and the reason, instead of playing it: a pod that the
    API server would not take (names, limits, no or equally named containers, a restartable main container), a pod
    that is admitted twice by one process of the kubelet or beside its namesake, a main container that starts before its
    init containers, containers of a pod that the kubelet has not heard of since its start, pods readmitted without
    a restart, a NUMA policy on a machine where no kubelet starts with it, a path too long for a socket, negative
    times, and everything that is asked of a kubelet or a plugin that is not there.

    Args:
        root: The kubelet's root directory; a temporary one, removed at the end, if it is not given.
        paths: The directories one by one, instead of a root.
        profile: Which kubelet: ``k134``, ``k136``, ``k137`` or a `Profile`.
        seed: Makes the choices reproducible that the kubelet takes at random (order of ids, fill and trim).
        clock: For the five-minute grace period, in seconds; replaced to let minutes pass at once.
        dial_timeout: Seconds to connect to a plugin; the kubelet's own is 10.
        watcher_period: Seconds between two looks of the plugin watcher; the kubelet's own is 1.
        topology_policy: ``none``, ``best-effort``, ``restricted`` or ``single-numa-node`` (contract section 8).
        topology_scope: What is aligned together: ``container`` or ``pod``.
        numa_nodes: NUMA nodes of the machine.
        autostart: Whether the kubelet runs when the context is entered.
        listener: Called with each event at once, in the event loop; must not block.
        seen_at: Where plugins in a mount namespace of their own see the root directory: the plugin watcher's plugins
            tell absolute paths.

    Attributes:
        events: What happened, in order (`EventLog`).
        paths: Its directories.
        profile: Which kubelet it is.
    """

    _faults: Faults | None = None

    @functools.cached_property
    def served(self) -> list[Entered[Any]]:
        """All that `serving` has returned."""
        return []

    @property
    def faults(self) -> Faults:
        """How it misbehaves on command."""
        if self._faults is None:
            self._faults = Faults(self, self._current, self._armed)
        return self._faults

    @override
    def _release(self) -> None:
        self.faults.release()

    # Plugins -------------------------------------------------------------------------------------------------------

    def serving(
        self,
        *backends: DeviceBackend,
        host: Host | None = None,
        ready: bool = True,
        timeout: float = PATIENCE,
        speed: float = 100.0,
        **options: Any,
    ) -> AbstractAsyncContextManager[PluginManager]:
        """Serve backends on this kubelet, in this process, while the context lasts.

        All directories are this kubelet's, the state directory among them: nothing of the machine's own is touched.

        Args:
            backends: The vendor's objects.
            host: The node's files, for instance ``sysfs_tree.host``.
            ready: Wait until the kubelet has a device list of every resource.
            timeout: Seconds to wait for that.
            speed: How much faster than on a node the kubelet is asked who holds what, and a ``released`` that failed is
                called again. There it comes 30 s after a pod's end, and again after 5 s.
            options: Fields of `kdp.deviceplugin.ManagerOptions`.

        Raises:
            ConfigurationError: A backend is a class, and no object of it.
            NotReached: They are not ready in time; the text tells why, and what happened.
        """
        from .serving import serving  # late: it loads kdp's own side of the protocol

        made = serving(self, backends, host=host, ready=ready, seconds=timeout, speed=speed, options=options)
        return Entered(made, self.served)

    # Pods ----------------------------------------------------------------------------------------------------------

    def topology_hints(self, pod: Pod) -> dict[str, dict[str, list[tuple[tuple[int, ...], bool]]]]:
        """Return the NUMA hints of a pod's containers now, as the topology manager would get them at its admission.

        Returns:
            Container -> resource -> sets of NUMA nodes that could serve it, in order, each with whether it is
            preferred. A resource without a preference, or that no nodes can serve, is left out.

        Raises:
            ScenarioError: It does not run.
        """
        manager = self._current.living("it has no hints").manager
        found = {container.name: manager.topology_hints(pod, container) for container in pod.in_order}
        return {
            container: {
                resource: sorted((hint.nodes or (), hint.preferred) for hint in hints)
                for resource, hints in resources.items()
                if hints
            }
            for container, resources in found.items()
        }

    def allocated_resources_status(self, pod: Pod | AdmittedPod | str) -> dict[str, dict[str, dict[str, str]]]:
        """Return the health of a pod's devices as its status would show it now (contract section 9).

        Args:
            pod: The pod, what `admit` returned for it, or its uid.

        Returns:
            Main container -> resource -> device id -> ``Healthy`` or ``Unhealthy``. Empty where the kubelet does not
            write this field (up to 1.35).

        Raises:
            ScenarioError: It does not run, or there is no such pod.
        """
        process = self._current.living("it writes no status")
        known = self._workload.find(pod)
        return process.manager.health(known) if self.profile.tells_device_health else {}

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that are bound to this node and have not failed, by uid."""
        return self._workload.pods()

    async def admit(self, pod: Pod, *, start: bool = True) -> AdmittedPod:
        """Admit a pod as the kubelet's sync loop does, one at a time, then start its containers.

        Devices are chosen and Allocate is called for each container, init containers first (contract section 6);
        then PreStartContainer before each start, where the plugin wants it (section 7). Ordinary init containers
        end at once. Devices that a pod holds already are used without any call (section 4.6).

        Args:
            pod: The pod. One that was admitted before can be admitted again after a restart of the kubelet.
            start: Whether its containers are started.

        Returns:
            What each container was given.

        Raises:
            AdmissionError: The kubelet refused it; it is gone from the node.
            ContainerStartError: It is admitted, but a container could not be started.
            KubeletPanic: The kubelet is gone: the plugin's list set off a fault of its own. Start it again.
            ScenarioError: The kubelet does not run, or has admitted this pod already.
        """
        process = self._current.living(f"pod {pod.name!r} cannot be admitted")
        async with self._panicking():
            return await self._workload.admit(process, pod, start=start)

    async def start_container(self, pod: Pod | AdmittedPod | str, container: str = "main") -> AdmittedContainer:
        """Start a container of an admitted pod (again): its process ended, or its first start failed.

        PreStartContainer is called where the plugin wants it; the devices and the reply are those from before.

        Args:
            pod: The pod, what `admit` returned for it, or its uid.
            container: The container's name.

        Returns:
            What it holds, with the reply that the container runtime gets.

        Raises:
            ContainerStartError: The start failed; it can be tried again.
            ScenarioError: There is no such pod or container, or the kubelet does not run.
        """
        process = self._current.living(f"container {container!r} cannot be started")
        async with self._panicking():
            return await self._workload.start_container(process, pod, container)

    @asynccontextmanager
    async def _panicking(self) -> AsyncGenerator[None]:
        try:
            yield
        except KubeletPanic:
            await self._end("panicked")
            raise

    async def readmit(self) -> dict[str, AdmittedPod | AdmissionError]:
        """Admit all known pods again: the API server's first word after a restart (contract section 4.6).

        Those that `admit` has brought back already are left out.

        Returns:
            By uid: what the pod's containers hold, or why it failed; a failed pod is gone from the node.

        Raises:
            KubeletPanic: The kubelet is gone: the plugin's list set off a fault of its own. Start it again.
            ScenarioError: The kubelet does not run, or has not restarted.
        """
        process = self._current.living("pods cannot be admitted again")
        async with self._panicking():
            return await self._workload.readmit(process)

    async def delete(self, pod: Pod | AdmittedPod | str) -> None:
        """Remove a pod from the node. Its devices are freed at the kubelet's next look, without a call.

        Args:
            pod: The pod, what `admit` returned for it, or its uid.

        Raises:
            ScenarioError: There is no such pod.
        """
        self._workload.forget(pod)

    @asynccontextmanager
    async def checkpoint_noise(self, per_second: float = 100.0) -> AsyncGenerator[None]:
        """Fault 27: the checkpoint is written this often while the context lasts.

        On a node: after each list of any plugin (section 4.4).

        A good plugin looks only at names that concern it, and neither registers nor sends anything.

        Args:
            per_second: Writes a second, each a temporary file and a rename.
        """

        async def write() -> None:
            while True:
                if self._current.process is not None:
                    self._current.process.save()
                await anyio.sleep(1 / per_second)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
