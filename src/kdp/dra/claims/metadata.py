"""Device metadata: a file in each container that says which devices a request of its claim got, with their attributes.

A program that must know its device's PCI address or link has it there, in a form that is the same for all drivers, and
needs no right to ask the API server (KEP-5304; DRA contract section 2.7).

=============== ==================================================================================
on the node     ``<data directory>/metadata/<claim uid>/<request>.json``
in a container  ``/var/run/kubernetes.io/dra-device-attributes/resourceclaims/<claim>/<request>/<driver>-metadata.json``
of a template   the same below ``resourceclaimtemplates/<the claim's name in the pod>``
=============== ==================================================================================

A file is a stream of JSON documents, one for each version of the format, the newest first. They say the same. A reader
takes the first one whose version it knows, so programs of either version find theirs (kubernetes/kubernetes#138994).

The file is there before the claim's CDI spec names it, and goes with the claim. A request of a prioritised list has the
name that the container's author knows in the path, and its full name inside.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any, Final, final

from ...errors import CheckpointError
from ...model.edits import Mount
from ...model.names import check_claim_uid
from ...storage import files
from ..render import render_device
from ..standard_attributes import standard_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ...hardware import Host
    from ...model.claims import Claim
    from ...model.devices import Device
    from .checkpoint import SavedAnswer
    from .plan import ClaimPart, ClaimPlan

logger = logging.getLogger(__name__)

API_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The versions, the newest first. They have the same fields; Kubernetes 1.36 knows the older one only."""

CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"


@final
class MetadataFiles:
    """The metadata files of one driver's claims. All methods block for a few files.

    Args:
        directory: The driver's data directory, which the container runtime must know by the same name.
        driver: The driver's name.
        host: The node's files, where the standard attributes are.
    """

    def __init__(self, directory: Path, *, driver: str, host: Host) -> None:
        self._directory = directory / "metadata"
        self._driver = driver
        self._host = host

    def write(
        self, plan: ClaimPlan, devices: Mapping[str, Device], answers: Sequence[SavedAnswer] = ()
    ) -> dict[ClaimPart, Mount]:
        """Write a claim's files, and return the mount of each request, by the part that comes first in it.

        A file that cannot be written is logged, and the claim goes on without it, as with the Go helper.

        Args:
            plan: What the claim has.
            devices: The devices by their ids.
            answers: What was prepared, with what is known of network interfaces; the files are written again with it.
        """
        network = {(each.request, each.pool, each.name, each.share_id): each.network for each in answers}
        requests: dict[str, list[ClaimPart]] = {}
        for part in plan.parts:
            requests.setdefault(part.request, []).append(part)
        mounts: dict[ClaimPart, Mount] = {}
        for request, parts in requests.items():
            base = request.partition("/")[0]
            file = self._folder(plan.claim.uid) / f"{base}.json"
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                document = self._document(plan, request, parts, devices, network)
                stream = "".join(json.dumps({"apiVersion": version, **document}) + "\n" for version in API_VERSIONS)
                files.replace(file, stream.encode(), mode=0o644, sync="nothing")
            except OSError as error:
                logger.warning(
                    "%s: claim %s/%s: its containers get no metadata of request %s: %s: %s",
                    self._driver,
                    plan.claim.namespace,
                    plan.claim.name,
                    request,
                    file,
                    error.strerror,
                )
                continue
            mounts[parts[0]] = Mount(
                host_path=os.fspath(file),
                container_path=f"{_folder(plan.claim, plan.pod_claim)}/{base}/{self._driver}-metadata.json",
                read_only=True,
            )
        return mounts

    def remove(self, uid: str) -> None:
        """Remove a claim's files; none need be there.

        Raises:
            CheckpointError: One cannot be removed.
            InvalidNameError: No claim has such a UID.
        """
        try:
            shutil.rmtree(self._folder(uid))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CheckpointError(f"metadata of claim {uid} in {self._directory}: {error.strerror}") from None

    def _folder(self, uid: str) -> Path:
        return self._directory / check_claim_uid(uid)  # it must not lead elsewhere: what is there is removed

    def _document(
        self,
        plan: ClaimPlan,
        request: str,
        parts: Sequence[ClaimPart],
        devices: Mapping[str, Device],
        network: Mapping[tuple[str, str, str, str], Mapping[str, Any]],
    ) -> dict[str, Any]:
        claim = plan.claim
        return {
            "kind": "DeviceMetadata",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1},
            **({"podClaimName": plan.pod_claim} if plan.pod_claim else {}),
            "requests": [
                {
                    "name": request,
                    "devices": [
                        {
                            "driver": self._driver,
                            "pool": use.pool,
                            "name": use.name,
                            **self._attributes_of(devices[use.device_id]),
                            **_network(network.get((use.base, use.pool, use.name, use.share_id))),
                        }
                        for part in parts
                        for use in part.uses
                    ],
                }
            ],
        }

    def _attributes_of(self, device: Device) -> dict[str, Any]:
        """Return a device's attributes as its slice has them."""
        rendered = render_device(device, standard_attributes(device, self._host))
        return {"attributes": rendered["attributes"]} if "attributes" in rendered else {}


def _network(known: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"networkData": dict(known)} if known else {}


def _folder(claim: Claim, pod_claim: str) -> str:
    own = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim.name}"
    return f"{CONTAINER_ROOT}/{own}"
