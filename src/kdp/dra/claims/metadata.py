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
from ...supervision.claimed import METADATA
from ..render import render_device
from ..standard_attributes import standard_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...hardware import Host
    from ...model.devices import Device
    from .checkpoint import Record

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
        self._directory = directory / METADATA
        self._driver = driver
        self._host = host

    def write(self, record: Record, devices: Mapping[str, Device]) -> dict[int, Mount]:
        """Write a claim's files, and return the mount of each request, by the position of its first part.

        A file that cannot be written is logged, and the claim goes on without it, as with the Go helper.

        Args:
            record: What the claim has; it is written again when network interfaces are known.
            devices: The devices by their ids.
        """
        claim = record.claim
        requests: dict[str, int] = {}
        for position, part in enumerate(record.parts):
            requests.setdefault(part.request, position)
        mounts: dict[int, Mount] = {}
        for request, position in requests.items():
            base = request.partition("/")[0]
            file = self._folder(claim.uid) / f"{base}.json"
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                document = self._document(record, request, devices)
                stream = "".join(json.dumps({"apiVersion": version, **document}) + "\n" for version in API_VERSIONS)
                files.replace(file, stream.encode(), mode=0o644, sync="nothing")
            except OSError as error:
                logger.warning(
                    "%s: claim %s/%s: its containers get no metadata of request %s: %s: %s",
                    self._driver,
                    claim.namespace,
                    claim.name,
                    request,
                    file,
                    error.strerror,
                )
                continue
            pod_claim = record.pod_claim
            own = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim.name}"
            mounts[position] = Mount(
                host_path=os.fspath(file),
                container_path=f"{CONTAINER_ROOT}/{own}/{base}/{self._driver}-metadata.json",
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

    def _document(self, record: Record, request: str, devices: Mapping[str, Device]) -> dict[str, Any]:
        claim = record.claim
        return {
            "kind": "DeviceMetadata",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1},
            **({"podClaimName": record.pod_claim} if record.pod_claim else {}),
            "requests": [
                {
                    "name": request,
                    "devices": [
                        {
                            "driver": self._driver,
                            "pool": use.pool,
                            "name": use.name,
                            **self._attributes_of(devices[use.device_id]),
                            **({"networkData": dict(use.network)} if use.network else {}),
                        }
                        for use in record.uses
                        if use.request == request
                    ],
                }
            ],
        }

    def _attributes_of(self, device: Device) -> dict[str, Any]:
        """Return a device's attributes as its slice has them."""
        rendered = render_device(device, standard_attributes(device, self._host))
        return {"attributes": rendered["attributes"]} if "attributes" in rendered else {}
