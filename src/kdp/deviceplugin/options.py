"""`ManagerOptions`: how device plugins are run, described in one place and handed down unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Literal, final

import attrs

from ..hardware import Host
from ..kubelet import KubeletPaths
from ..startup import shown
from ..supervision.health import HealthChange
from ..supervision.supervisor import Deadlines
from .counts import PluginCounts
from .tracking.pace import Pace

if TYPE_CHECKING:
    from ..concurrency.history import History  # noqa: TC004 - late: few plugins pay for it
    from .cdi import CdiOptions  # noqa: TC004 - late: few plugins pay for it

Route = Literal["kubelet", "watcher"]
"""How to register: with kubelet.sock, or by a socket that the kubelet's plugin watcher finds (contract section 3)."""


@final
@attrs.frozen(kw_only=True)
class ManagerOptions:
    """How `PluginManager` runs device plugins.

    Attributes:
        paths: The kubelet's directories.
        registration: By kubelet.sock or through the plugin watcher.
        host: The node's files; None: what the backends were made with, else this machine's.
        poll_interval: Seconds between discoveries, over every backend's own; None: only on events; ``...``: as the
            backends say.
        deadlines: What hooks get; None: `Deadlines`' defaults.
        cdi: How CDI is used; None: not at all.
        health_policy: Thresholds of health that differ from the backends' own (`kdp.HealthPolicy`), by name.
        observe: Called on the loop with each change of a device's health, for metrics and events; must not block. What
            it raises is logged and changes nothing.
        state_dir: Where allocations are saved until they are released, so that a killed process forgets none; None:
            nowhere.
        pace: How often the kubelet is asked what pods hold; None: `Pace`'s defaults.
        policy: Which devices to prefer, over every backend's own; ``none``: the kubelet chooses; None: as they say.
        release_policy: Whether a device is offered before it is scrubbed, over every backend's own; None: as they say.
        counts: Where is counted what happens; one manager may hand it to the next.
        history: Takes what happens; None: nobody reads it.
        follows_pods: Whether the kubelet is asked every 30 s which pods hold devices, also if no backend needs it.
        measures: Whether the backends' ``measure`` is called.
        wants_labels: Whether the backends' ``labels`` is called.
    """

    __repr__ = shown

    paths: KubeletPaths = attrs.field(factory=KubeletPaths.under)
    registration: Route = "kubelet"
    host: Host | None = None
    poll_interval: float | EllipsisType | None = ...
    deadlines: Deadlines | None = None
    cdi: CdiOptions | None = None
    health_policy: Mapping[str, float | None] | None = None
    observe: Callable[[HealthChange], object] | None = None
    state_dir: Path | None = None
    pace: Pace | None = None
    policy: str | None = None
    release_policy: str | None = None
    counts: PluginCounts = attrs.field(factory=PluginCounts, eq=False, repr=False)
    history: History | None = attrs.field(default=None, eq=False, repr=False)
    follows_pods: bool = False
    measures: bool = False
    wants_labels: bool = False

    @property
    def is_watcher(self) -> bool:
        """Whether the kubelet's plugin watcher is to find the sockets."""
        return self.registration == "watcher"

    @property
    def directory(self) -> Path:
        """The directory that the sockets belong in."""
        return self.paths.plugins_registry_dir if self.is_watcher else self.paths.device_plugin_dir
