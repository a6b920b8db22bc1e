"""Which kubelet is simulated: one frozen value for each minor version, with nothing but the differences.

A difference is a field here and one ``if`` where it matters; everything that all versions share has no field.
Where the rows were read is in the contract, section 0; ``proven`` says whether the profile is compared with the real
device manager of that version.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

_P = TypeVar("_P")


@attrs.frozen(kw_only=True)
class Profile:
    """How one version of the kubelet treats its device plugins.

    Attributes:
        name: The name by which the profile is chosen, for example ``k137``.
        kubelet: The version that it stands for, for example ``1.37.1``.
        proven: Whether it is compared with a real device manager of this version.
        one_client_per_resource: The client records have one slot for each resource name, so that the end of an
            old stream closes the new registration (contract section 2.5). Otherwise records and endpoints are
            kept by resource name and socket path, and a path that is still on record is refused.
        register_governs_connecting: Dialing and GetDevicePluginOptions run under the context of the Register
            call and end with it (contract section 2.1).
        watcher_retries: The plugin watcher forgets a plugin whose registration failed, and so tries it again
            (contract section 3).
        wipes_everything: At its start the kubelet deletes every entry of the plugin directory that is no
            directory, not only the sockets (contract section 4.3).
        sees_restarted_containers: A container that had restarted before the kubelet did is recognised as running
            (contract section 4.6).
        hints_over_every_node: NUMA hints are tried over all nodes of the machine, not only over those that have
            devices of the resource (contract section 8).
        tells_device_health: The pod's status has the health of its devices (contract section 9).
        pod_resources_has_get: The pod-resources API answers Get (contract section 10).
        serves_pods_api: The pods API is on without being asked for (contract section 10).
        keeps_reservations: While an Allocate runs, its devices stay booked if those of ended pods are freed (1.38 and
            later). Otherwise a List frees them, too, and they may be given twice (kubernetes/kubernetes#137534).
    """

    name: str
    kubelet: str
    proven: bool
    one_client_per_resource: bool
    register_governs_connecting: bool
    watcher_retries: bool
    wipes_everything: bool
    sees_restarted_containers: bool
    hints_over_every_node: bool
    tells_device_health: bool
    pod_resources_has_get: bool
    serves_pods_api: bool
    keeps_reservations: bool


_K132 = Profile(
    name="k132",
    kubelet="1.32.10",
    proven=False,
    one_client_per_resource=True,
    register_governs_connecting=False,
    watcher_retries=False,
    wipes_everything=True,
    sees_restarted_containers=False,
    hints_over_every_node=True,
    tells_device_health=False,
    pod_resources_has_get=False,
    serves_pods_api=False,
    keeps_reservations=False,
)
_K134 = attrs.evolve(
    _K132, name="k134", kubelet="1.34.4", proven=True, wipes_everything=False, pod_resources_has_get=True
)
_K136 = attrs.evolve(
    _K134,
    name="k136",
    kubelet="1.36.3",
    register_governs_connecting=True,
    watcher_retries=True,
    sees_restarted_containers=True,
    hints_over_every_node=False,
    tells_device_health=True,
)
_K137 = attrs.evolve(_K136, name="k137", kubelet="1.37.1", one_client_per_resource=False, serves_pods_api=True)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in (_K132, _K134, _K136, _K137)}
)
"""All profiles by name, oldest kubelet first."""

DEFAULT_PROFILE: Final = "k137"
"""The newest kubelet, and the one that forgives least."""


def profile_named(profile: str | Profile) -> Profile:
    """Return the profile of that name; a profile is returned as it is.

    Raises:
        ValueError: There is no such profile; the text names those that there are.
    """
    return named(profile, PROFILES, "kubelet")


def named(profile: str | _P, profiles: Mapping[str, _P], kind: str) -> _P:
    """Return one of these profiles as `profile_named` does; the error calls them by their kind."""
    if not isinstance(profile, str):
        return profile
    try:
        return profiles[profile]
    except KeyError:
        raise ValueError(f"there is no {kind} profile {profile!r}; there are {', '.join(profiles)}") from None
