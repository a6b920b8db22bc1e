"""Which kubelet is simulated: one frozen value for each minor version, with nothing but the differences.

A difference is a field here and one ``if`` where it matters; everything that all versions share has no field.
Where the rows were read is in the contract, section 0; ``proven`` says whether the profile is compared with the real
device manager of that version.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class Profile:
    """How one version of the kubelet treats its device plugins.

    Attributes:
        name: The name by which the profile is chosen, for example ``k137``.
        kubelet: The version that it stands for, for example ``1.37.1``.
        proven: Whether a real device manager of this version can be had to compare with.
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


_ALL = (
    Profile(
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
    ),
    Profile(
        name="k134",
        kubelet="1.34.4",
        proven=True,
        one_client_per_resource=True,
        register_governs_connecting=False,
        watcher_retries=False,
        wipes_everything=False,
        sees_restarted_containers=False,
        hints_over_every_node=True,
        tells_device_health=False,
        pod_resources_has_get=True,
        serves_pods_api=False,
    ),
    Profile(
        name="k136",
        kubelet="1.36.3",
        proven=True,
        one_client_per_resource=True,
        register_governs_connecting=True,
        watcher_retries=True,
        wipes_everything=False,
        sees_restarted_containers=True,
        hints_over_every_node=False,
        tells_device_health=True,
        pod_resources_has_get=True,
        serves_pods_api=False,
    ),
    Profile(
        name="k137",
        kubelet="1.37.1",
        proven=True,
        one_client_per_resource=False,
        register_governs_connecting=True,
        watcher_retries=True,
        wipes_everything=False,
        sees_restarted_containers=True,
        hints_over_every_node=False,
        tells_device_health=True,
        pod_resources_has_get=True,
        serves_pods_api=True,
    ),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType({profile.name: profile for profile in _ALL})
"""All profiles by name, oldest kubelet first."""

DEFAULT_PROFILE: Final = "k137"
"""The newest kubelet, and the one that forgives least."""


def profile_named(profile: str | Profile) -> Profile:
    """Return the profile of that name; a profile is returned as it is.

    Raises:
        ValueError: There is no such profile; the text names those that there are.
    """
    if isinstance(profile, Profile):
        return profile
    try:
        return PROFILES[profile]
    except KeyError:
        raise ValueError(f"there is no kubelet profile {profile!r}; there are {', '.join(PROFILES)}") from None
