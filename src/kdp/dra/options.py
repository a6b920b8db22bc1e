"""Options of a DRA driver and of a pool's controller, described in one place and handed down unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, final

import attrs

from ..cluster.api import ClusterApi
from ..hardware import Host
from ..kubelet import KubeletPaths
from ..kubelet.calls import CallCounts
from ..model.claims import TaintEffect
from ..supervision.health import HealthChange
from ..supervision.supervisor import Deadlines

if TYPE_CHECKING:
    from ..concurrency.history import History  # noqa: TC004 - attrs reads no annotation

CDI_DIRECTORY = Path("/var/run/cdi")

COLLECT_GRACE = 600.0
"""Seconds that a claim must be gone before it is undone without the kubelet."""


@attrs.frozen(kw_only=True)
class BaseOptions:
    """What a driver and a controller have in common.

    Attributes:
        api: The API server.
        name: The driver's name, of a single backend; None: it is made of the backend's ``resource``.
        host: The files of the node that the backends were made with; None: as the backends say, else this machine's.
        poll_interval: Seconds between discoveries, over every backend's own; None: only on events; ``...``: as the
            backends say.
        deadlines: What hooks get.
        health_taint: The effect of the taint that an unhealthy device has; None: it has none.
        health_policy: Thresholds of health that differ from the backends' own (`kdp.HealthPolicy`), by name.
        observe: Called on the loop with each change of a device's health; must not block. What it raises is logged.
        calls: Where the kubelet's calls are counted; one driver may hand it to the next.
        measures: Whether the backends' ``measure`` is called.
        wants_labels: Whether the backends' ``labels`` is called.
        history: Takes events. `None` if no command can ask for them.
    """

    api: ClusterApi
    name: str | None = None
    host: Host | None = None
    poll_interval: float | EllipsisType | None = ...
    deadlines: Deadlines | None = None
    health_taint: TaintEffect | None = "NoSchedule"
    health_policy: Mapping[str, float | None] | None = None
    observe: Callable[[HealthChange], object] | None = None
    calls: CallCounts = attrs.field(factory=CallCounts, eq=False, repr=False)
    measures: bool = False
    wants_labels: bool = False
    history: History | None = attrs.field(default=None, eq=False, repr=False)


@final
@attrs.frozen(kw_only=True)
class DriverOptions(BaseOptions):
    """What a `kdp.dra.driver.DraDriver` can be given.

    Attributes:
        node: The node's name, as the API server has it.
        pool: The pool of devices that are no node's own, of which a `PoolController` publishes the slices; None: the
            devices are those of the node, and their slices are published here.
        paths: The kubelet's directories; default: those of a normal kubelet. They must have the same paths for the
            kubelet.
        pod_uid: The UID of the pod that this runs in, so that it and its successor can overlap in a rolling update;
            None: there is one process at a time.
        cdi: Where container runtimes find specs.
        health: Whether the kubelet gets the devices' health, for the pods' status.
        device_status: Whether claims say in ``status.devices`` that their devices are ready (`kdp.dra.claims.status`).
            It needs more permissions: DRA contract section 3.5.
        device_metadata: Whether containers get a file that describes their devices (`kdp.dra.claims.metadata`).
        release_policy: Whether a device is offered while ``released`` fails for the claim that had it, over every
            backend's own; None: as they say.
        boot_id: Which boot of the node this is; None: as the kernel says.
        follows_pods: Whether the kubelet is asked every 30 s which containers have devices (`kdp.dra.holders`).
        replaces: Resources of another device plugin that served the same devices under ids of its own. No device is
            offered while a pod still holds one of these.
        claim_grace: Seconds that a claim must be gone from the API before it is undone although the kubelet did not
            ask.
    """

    node: str
    pool: str | None = None
    paths: KubeletPaths = attrs.field(factory=KubeletPaths.under)
    pod_uid: str | None = None
    cdi: Path = CDI_DIRECTORY
    health: bool = True
    device_status: bool = False
    device_metadata: bool = False
    release_policy: str | None = None
    boot_id: str | None = None
    follows_pods: bool = False
    replaces: tuple[str, ...] = ()
    claim_grace: float = COLLECT_GRACE


@final
@attrs.frozen(kw_only=True)
class ControllerOptions(BaseOptions):
    """What a `kdp.dra.controller.PoolController` can be given. Its ``host`` is not asked for the devices' nodes.

    Attributes:
        pool: The pool's name. It must not be that of a node.
        labels: What the nodes have that can use the devices; none: all nodes can.
    """

    pool: str
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
