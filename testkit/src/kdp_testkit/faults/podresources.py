"""Faults 73 to 81: the pod-resources API, which says which pod holds which device.

They are armed in `ArmedFaults`. The server asks it: `ArmedFaults.meet` before each call, and `ArmedFaults.shape` with
each List's reply. Both know the calls by their names and the messages by their bytes, so any server of the API can use
them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..protocol.pods import ScenarioError
from .base import FaultGroup, remove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kdp.proto import podresources_v1_pb2 as podresources

_RATE_LIMIT = "rejected by rate limit"
_GET_DISABLED = "PodResources API Get method disabled"


class PodResourcesFaults(FaultGroup):
    """Faults of the pod-resources API."""

    def pod_resources_absent(self) -> None:
        """Fault 73: there is no socket of the pod-resources API.

        On a node: the directory is not mounted into the plugin's pod, or the kubelet starts.

        A good plugin serves all the same; it only knows less of which devices are in use.
        """
        remove(self._kubelet.paths.pod_resources_socket)

    def pod_resources_exhausted(self, *, times: int | None = 1) -> None:
        """Fault 74: calls are answered with RESOURCE_EXHAUSTED and the kubelet's text of its rate limit.

        On a node: somebody else on the node asks more than 100 times a second (section 10).

        A good plugin takes it for "later", and concludes nothing from it.
        """
        self.armed.arm_answer(times, method=None, code="RESOURCE_EXHAUSTED", text=_RATE_LIMIT)

    def pod_resources_slow(self, seconds: float, *, times: int | None = 1) -> None:
        """Fault 74: calls are answered ``seconds`` late.

        On a node: the device manager's lock is held by an update of many devices.

        A good plugin has a deadline, and nothing of it waits for the answer.
        """
        self.armed.arm_answer(times, method=None, delay=seconds)

    def list_terminal_pods(self, resource: str, device_ids: Sequence[str], *, times: int | None = 1) -> None:
        """Fault 75: List names a pod that has ended as a holder of these devices.

        On a node: kubelets up to 1.33 list terminal pods (#119423, B18).

        A good plugin frees the devices later, not never, and reports no false use.
        """

        def change(message: podresources.ListPodResourcesResponse) -> None:
            pod = message.pod_resources.add(name="ended", namespace="default")
            pod.containers.add(name="main").devices.add(resource_name=resource, device_ids=device_ids)

        self.armed.arm_change(times, change)

    def hide_containers(self, *names: str, times: int | None = 1) -> None:
        """Fault 76: List leaves out the containers of these names, as it does with plain init containers.

        On a node: always; init containers hold devices and are not listed (section 10).

        A good plugin frees nothing that was allocated a moment ago only because List does not name it.
        """

        def change(message: podresources.ListPodResourcesResponse) -> None:
            for pod in message.pod_resources:
                kept = [container for container in pod.containers if container.name not in names]
                del pod.containers[:]
                pod.containers.extend(kept)

        self.armed.arm_change(times, change)

    def list_devices_twice(self, *, times: int | None = 1) -> None:
        """Fault 77: List names every device twice, in entries of their own for two NUMA nodes.

        On a node: a device with several NUMA nodes has one entry for each (section 8).

        A good plugin counts ids, not entries.
        """

        def change(message: podresources.ListPodResourcesResponse) -> None:
            for pod in message.pod_resources:
                for container in pod.containers:
                    for device in list(container.devices):
                        again = container.devices.add()
                        again.CopyFrom(device)
                        again.topology.nodes.add(ID=1)

        self.armed.arm_change(times, change)

    def list_too_much(self, more_bytes: int = 8 * 1024 * 1024, *, times: int | None = 1) -> None:
        """Fault 78: List's reply has ``more_bytes`` more than its pods need, beyond gRPC's 4 MiB.

        On a node: tens of thousands of devices in use.

        A good plugin receives up to 16 MiB; beyond that it concludes nothing.
        """

        def change(message: podresources.ListPodResourcesResponse) -> None:
            left, number = more_bytes, 0
            while left > 0:
                message.pod_resources.add(name=f"{number:0>10}" * 20, namespace="many")
                left, number = left - 200, number + 1

        self.armed.arm_change(times, change)

    def recreate_pod_resources_socket(self) -> None:
        """Fault 79: the pod-resources API's socket file is made again; who is connected stays with the old name.

        On a node: each start of the kubelet.

        A good plugin dials by the path each time it has lost its connection, and mounts the directory, not the file.
        """
        path = self._kubelet.paths.pod_resources_socket
        if not path.is_socket():
            raise ScenarioError(f"{path} is not a socket, so it cannot be made again")
        twin = path.with_name(".kubelet.sock.twin")
        os.link(path, twin)
        path.unlink()
        os.rename(twin, path)

    def list_nothing(self, *, times: int | None = 1) -> None:
        """Fault 80: List's reply is empty, as right after a restart.

        On a node: the kubelet has not heard from the API server yet.

        A good plugin frees a device only when two lists 30 s apart do not name it.
        """
        self.armed.arm_change(times, lambda message: message.Clear())

    def disable_get(self, *, times: int | None = None) -> None:
        """Fault 81: Get answers that it is disabled.

        On a node: kubelets up to 1.33 without a feature gate (section 10).

        A good plugin asks with List instead.
        """
        self.armed.arm_answer(times, method="Get", code="UNKNOWN", text=_GET_DISABLED)
