"""`ManagerOptions`: how device plugins are run, described in one place and handed down unchanged. `Pace`: its times."""

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

if TYPE_CHECKING:
    from ..concurrency.history import History  # noqa: TC004 - attrs reads no annotation
    from .cdi import CdiOptions  # noqa: TC004 - late: few plugins pay for it

Route = Literal["kubelet", "watcher"]
"""How to register: with kubelet.sock, or by a socket that the kubelet's plugin watcher finds (contract section 3)."""


@final
@attrs.frozen(kw_only=True)
class Pace:
    """Seconds that things take; tests shorten them.

    Attributes:
        gap: Between the two lists that do not name a device (contract section 10).
        admission: From a list that names a pod to an Allocate that cannot be of that pod's admission any more: the
            Allocates of other plugins may come between.
        look: Between two lists while something is owed and nothing says that a look is due.
        settled: Between two lists while the kubelet's pods API shows that all pods of the last one run.
        settling: Until a kubelet is assumed to know all its pods, if nothing says so (docs/explanation/decisions.md).
        between: Between two rounds of questions: the kubelet answers some and throttles more (contract section 10).
        retry: From a release that failed to the next try; doubled after each that fails (`RETRY_MOST`, `SCRUB_MOST`).
        absent: At most between two looks for a socket that is not there; the first is a second: a kubelet may restart.
        after_connect: From the first list of a generation to the first comparison with what the kubelet believes.
        period: Between two comparisons while all is well. A frozen kubelet must be noticed within a minute, which
            takes two questions in a row without an answer.
        again: Between two comparisons while something is wrong.
        follow: Between two lists that questions for the status cause.
        lasting: For which a difference must last before it is cured (contract section 13, scenario 73).
    """

    __repr__ = shown

    gap: float = 30.0
    admission: float = 10.0
    look: float = 60.0
    settled: float = 600.0
    settling: float = 600.0
    between: float = 1.0
    retry: float = 5.0
    absent: float = 60.0
    after_connect: float = 5.0
    period: float = 30.0
    again: float = 10.0
    lasting: float = 30.0
    follow: float = 5.0


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
        history: Takes events. `None` if no command can ask for them.
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
