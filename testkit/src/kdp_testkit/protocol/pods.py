"""Pods as far as devices are concerned: what a test asks for, and what its containers were given.

Frozen values without a protobuf or gRPC type. `Pod` and `Container` say what is wanted; `AdmittedPod` holds, for
each container, the devices that the kubelet chose and the plugin's reply to Allocate as the container runtime
would get it. `AdmissionError` is how a pod fails, in the words that its author reads in ``kubectl describe pod``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs

from .validation import is_extended_resource

_numbers = itertools.count(1)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class ScenarioError(Exception):
    """A test asked for something that cannot happen on a node; the text says why."""


class AdmissionError(Exception):
    """The kubelet refused a pod, for good: its phase is Failed, and it is not tried again (contract section 4.6).

    Attributes:
        reason: ``UnexpectedAdmissionError``, ``OutOf<resource>``: the pod's status.reason.
        message: The sentence that the pod's author reads: the pod's status.message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class KubeletPanic(Exception):
    """The kubelet's process has ended by a fault of its own that the plugin's list set off; the text says which.

    Its supervisor starts it again, and it ends again as long as the list is the same.
    """


class ContainerStartError(Exception):
    """A container of an admitted pod could not be started; the kubelet would try it again with backoff.

    Attributes:
        container: The container's name.
        reason: ``CreateContainerConfigError``.
        message: What the kubelet reports, with the plugin's own error in it (contract section 7).
    """

    def __init__(self, container: str, message: str) -> None:
        self.container = container
        self.reason = "CreateContainerConfigError"
        self.message = message
        super().__init__(f"{self.reason}: {message} (container {container!r})")


def _as_limits(limits: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(limits))


def _as_map(values: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(values))


@attrs.frozen
class Container:
    """One container and its device limits.

    Attributes:
        name: Its name, unique in the pod.
        limits: How many devices of which resource. Requests of extended resources equal their limits.
        restartable: For init containers only: a sidecar, which keeps its devices for the pod's whole life
            (contract section 6.2).
    """

    name: str
    limits: Mapping[str, int] = attrs.field(factory=dict[str, int], converter=_as_limits)
    restartable: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse what the API server would refuse."""
        if len(self.name) > 63 or not _LABEL.fullmatch(self.name):
            raise ScenarioError(
                f"container {self.name!r}: the API server takes names of lower-case letters, digits and '-', up to 63"
            )
        for resource, count in self.limits.items():
            if not is_extended_resource(resource):
                raise ScenarioError(f"container {self.name!r}: {resource!r} is no extended resource name")
            if count < 0:
                raise ScenarioError(f"container {self.name!r}: {count} devices of {resource} cannot be requested")


def _as_containers(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(containers)


@attrs.frozen(kw_only=True)
class Pod:
    """One pod.

    Attributes:
        containers: Its containers, in the order of the specification.
        init_containers: Its init containers, in the order of the specification.
        name: Its name; made up if it is not given.
        namespace: Its namespace.
        uid: What the kubelet knows it by; made of the name if it is not given.
    """

    containers: Sequence[Container] = attrs.field(converter=_as_containers)
    init_containers: Sequence[Container] = attrs.field(default=(), converter=_as_containers)
    name: str = attrs.field(factory=lambda: f"pod-{next(_numbers)}")
    namespace: str = "default"
    uid: str = attrs.field(default=attrs.Factory(lambda self: f"uid-{self.name}", takes_self=True))

    def __attrs_post_init__(self) -> None:
        """Refuse what the API server would refuse."""
        if len(self.name) > 253 or not all(_LABEL.fullmatch(part) for part in self.name.split(".")):
            raise ScenarioError(
                f"pod {self.name!r}: the API server takes names of lower-case letters, digits, '-' and '.', up to 253"
            )
        if len(self.namespace) > 63 or not _LABEL.fullmatch(self.namespace):
            raise ScenarioError(
                f"namespace {self.namespace!r}: the API server takes names of lower-case letters, digits and '-', up "
                "to 63"
            )
        if not self.containers:
            raise ScenarioError(f"pod {self.name!r} has no container")
        names = [container.name for container in self.in_order]
        if len(set(names)) != len(names):
            raise ScenarioError(f"pod {self.name!r}: two containers have one name: {', '.join(names)}")
        if any(container.restartable for container in self.containers):
            raise ScenarioError(f"pod {self.name!r}: only an init container can be restartable")

    @classmethod
    def asking(cls, limits: Mapping[str, int], *, name: str | None = None) -> Pod:
        """Return a pod of one container, named ``main``, with these limits."""
        containers = (Container("main", limits),)
        return cls(containers=containers) if name is None else cls(containers=containers, name=name)

    @property
    def in_order(self) -> tuple[Container, ...]:
        """All containers in the order of their allocation: init containers first (contract section 6.1)."""
        return (*self.init_containers, *self.containers)

    def requests(self) -> dict[str, int]:
        """Return what the whole pod counts for on its node.

        Init containers run one after another before the others, sidecars stay: the larger of both phases counts.
        """
        sidecars: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in self.init_containers:
            for resource, count in container.limits.items():
                kept = sidecars.get(resource, 0)
                if container.restartable:
                    sidecars[resource] = kept + count
                peak[resource] = max(peak.get(resource, 0), kept + count)
        together = dict(sidecars)
        for container in self.containers:
            for resource, count in container.limits.items():
                together[resource] = together.get(resource, 0) + count
        return {
            resource: max(together.get(resource, 0), peak.get(resource, 0))
            for resource in together.keys() | peak.keys()
        }


@attrs.frozen
class MountSpec:
    """A mount of an Allocate reply."""

    container_path: str
    host_path: str
    read_only: bool = False


@attrs.frozen
class DeviceSpec:
    """A device node of an Allocate reply."""

    container_path: str
    host_path: str
    permissions: str


def _as_mounts(values: Iterable[MountSpec]) -> tuple[MountSpec, ...]:
    return tuple(values)


def _as_devices(values: Iterable[DeviceSpec]) -> tuple[DeviceSpec, ...]:
    return tuple(values)


def _as_names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class ContainerReply:
    """What a plugin answered for one container: one ContainerAllocateResponse.

    Attributes:
        envs: Environment variables.
        mounts: Mounts, in the reply's order.
        devices: Device nodes, in the reply's order.
        annotations: Annotations of the container for its runtime.
        cdi_devices: Qualified CDI names, in the reply's order.
    """

    envs: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_as_map)
    mounts: Sequence[MountSpec] = attrs.field(default=(), converter=_as_mounts)
    devices: Sequence[DeviceSpec] = attrs.field(default=(), converter=_as_devices)
    annotations: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_as_map)
    cdi_devices: Sequence[str] = attrs.field(default=(), converter=_as_names)

    @classmethod
    def merge(cls, replies: Iterable[ContainerReply]) -> ContainerReply:
        """Merge the replies of several resources as the kubelet does: the first one wins (contract section 6.4)."""
        envs: dict[str, str] = {}
        mounts: dict[str, MountSpec] = {}
        devices: dict[str, DeviceSpec] = {}
        annotations: dict[str, str] = {}
        cdi_devices: dict[str, None] = {}
        for reply in replies:
            for key, value in reply.envs.items():
                envs.setdefault(key, value)
            for mount in reply.mounts:
                mounts.setdefault(mount.container_path, mount)
            for device in reply.devices:
                devices.setdefault(device.container_path, device)
            for key, value in reply.annotations.items():
                annotations.setdefault(key, value)
            cdi_devices.update(dict.fromkeys(reply.cdi_devices))
        return cls(
            envs=envs,
            mounts=tuple(mounts.values()),
            devices=tuple(devices.values()),
            annotations=annotations,
            cdi_devices=tuple(cdi_devices),
        )


@attrs.frozen(kw_only=True)
class AdmittedContainer:
    """What one container of an admitted pod was given.

    Attributes:
        devices: The chosen device ids, sorted, by resource.
        replies: The plugin's reply, by resource.
        reply: All replies merged as the kubelet merges them for the container runtime.
    """

    devices: Mapping[str, tuple[str, ...]]
    replies: Mapping[str, ContainerReply]
    reply: ContainerReply


@attrs.frozen(kw_only=True)
class AdmittedPod:
    """A pod that the kubelet admitted.

    Attributes:
        pod: The pod.
        containers: What each container was given, by its name; containers without devices are there, without values.
    """

    pod: Pod
    containers: Mapping[str, AdmittedContainer]

    def reply(self, container: str = "main") -> ContainerReply:
        """Return what the container runtime gets for this container.

        Raises:
            KeyError: The pod has no container of this name.
        """
        return self._container(container).reply

    def devices(self, resource: str, container: str = "main") -> tuple[str, ...]:
        """Return the ids of this resource that this container got, sorted.

        Raises:
            KeyError: The pod has no container of this name.
        """
        return self._container(container).devices.get(resource, ())

    def _container(self, name: str) -> AdmittedContainer:
        if name not in self.containers:
            raise KeyError(f"container {name!r}: the pod has {', '.join(self.containers)}")
        return self.containers[name]


class NotReached(TimeoutError):
    """A condition that a test waited for did not come true; the text has everything that happened instead."""
