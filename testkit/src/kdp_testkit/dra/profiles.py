"""Which Kubernetes is simulated for DRA: one frozen value for each minor version, with nothing but the differences.

Read in ``k8s.io/kubernetes`` ``pkg/kubelet/cm/dra`` and ``pkg/features`` of 1.34.4, 1.36.3 and 1.37.1.
`DraTimings` says how long things take, in all of them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from ..profiles import named

if TYPE_CHECKING:
    from collections.abc import Mapping

_ON = frozenset({"DRAPrioritizedList", "DRAAdminAccess", "DRAResourceClaimDeviceStatus"})
_ON_SINCE_136 = frozenset(
    {
        "DRADeviceTaints",
        "DRAPartitionableDevices",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRAResourceClaimGranularStatusAuthorization",
        "ResourceHealthStatus",
        "ResourceHealthStatusMessage",
    }
)


@attrs.frozen(kw_only=True)
class DraProfile:
    """How one version treats its DRA drivers.

    Attributes:
        name: The name by which the profile is chosen, for example ``k137``.
        kubernetes: The version that it stands for, for example ``1.37.1``.
        watcher_retries: The plugin watcher forgets a plugin whose registration failed, and so tries it again.
        answer_replaces: A driver's answer for a claim replaces the devices of that driver; otherwise it is appended to
            what came before, also to what was read from the checkpoint.
        guards_unprepare: A claim that is being unprepared takes no new pod, and a pod that never got as far as Prepare
            unprepares nothing.
        asks_all_for_health: The health stream of v1alpha1 is opened to every driver; otherwise only to one that
            advertises a version of it.
        knows_skipping: The results of a claim may list calls that the kubelet leaves out
            (`kdp_testkit.dra.claims.SKIPPING`, a gate that is off by default).
        health_says_more: A device's report has a timeout of its own and a message; otherwise 30 s and none.
        health_by_request: A pod's status tells of a claim by the pod's name of it, and of the devices of the request;
            otherwise only of a claim whose name in the pod is its own, and then of all its devices under the first
            request.
        remembers_shares: The checkpoint has which share of a device a claim was given.
        pod_word: How the refusal of a claim that was made for another pod writes "pod".
        gates: The feature gates that are on by default, among those that matter here.
    """

    name: str
    kubernetes: str
    watcher_retries: bool
    answer_replaces: bool
    guards_unprepare: bool
    asks_all_for_health: bool
    health_says_more: bool
    knows_skipping: bool
    health_by_request: bool
    remembers_shares: bool
    pod_word: str
    gates: frozenset[str]


_K134 = DraProfile(
    name="k134",
    kubernetes="1.34.4",
    watcher_retries=False,
    answer_replaces=False,
    guards_unprepare=False,
    asks_all_for_health=True,
    health_says_more=False,
    knows_skipping=False,
    health_by_request=False,
    remembers_shares=False,
    pod_word="pod",
    gates=_ON,
)
_K136 = attrs.evolve(
    _K134,
    name="k136",
    kubernetes="1.36.3",
    watcher_retries=True,
    health_says_more=True,
    health_by_request=True,
    remembers_shares=True,
    pod_word="Pod",
    gates=_ON | _ON_SINCE_136,
)
_K137 = attrs.evolve(
    _K136,
    name="k137",
    kubernetes="1.37.1",
    answer_replaces=True,
    guards_unprepare=True,
    asks_all_for_health=False,
    knows_skipping=True,
)

PROFILES: Final[Mapping[str, DraProfile]] = MappingProxyType(
    {profile.name: profile for profile in (_K134, _K136, _K137)}
)
"""All profiles by name, oldest first."""

DEFAULT_PROFILE: Final = "k137"


def profile_named(profile: str | DraProfile) -> DraProfile:
    """Return the profile of that name, as `kdp_testkit.profiles.profile_named` does."""
    return named(profile, PROFILES, "DRA")


@attrs.frozen(kw_only=True)
class DraTimings:
    """How long things take, in seconds; by default as in the kubelet.

    Attributes:
        call: For one call of Prepare or Unprepare.
        wiping_delay: Until a driver's slices are wiped after the last connection to it was lost.
        wiping_retry: Until a failed wiping is tried again, doubled each time.
        health_retry: Until a health stream that ended is opened again.
        reconcile: Between two looks for pods that are gone.
        watcher: Between two looks of the plugin watcher.
    """

    call: float = 45.0
    wiping_delay: float = 30.0
    wiping_retry: float = 1.0
    health_retry: float = 5.0
    reconcile: float = 60.0
    watcher: float = 1.0
