"""`claimed_devices`: the devices that DRA drivers of this node have prepared for claims, as the drivers' files say.

A driver keeps one file for each claim, ``<plugins directory>/<driver>/claims/<claim UID>.json``, until the claim is
unprepared. A device plugin reads them after the node has switched back from a driver. A driver reads the files of
drivers with other names. The file is the only proof that a container may still have the device, because pods with
claims outlive their driver.

A file has two lines: a head, and the claim, whose bytes must have the digest in the head. So a later version may add
fields. `seal` and `unseal` are the only code that knows the head.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast, final

import attrs

from ..errors import CheckpointError
from ..startup import shown
from ..storage import reading
from ..storage.documents import parse_json
from .given import Given
from .holdings import Holding, without_ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

FORMAT: Final = "kdp-dra-claim"
VERSION: Final = 1
READABLE_BY: Final = 1
"""The oldest version that can read the files that this version writes."""

CLAIMS: Final = "claims"
"""The directory of a driver's claims, in the driver's directory."""

METADATA: Final = "metadata"
"""The directory with the descriptions of claims for containers, in the driver's directory."""

MARK: Final = ".driver-of-kdp"
"""An empty file that tells a driver's directory of kdp from that of another program, in the driver's directory."""

SERIALIZE: Final = "serialize.lock"
"""The lock between processes of one driver, in the driver's directory."""


def seal(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a claim's file."""
    import hashlib  # late, both: a device plugin without claims beside it starts sooner
    import json

    payload = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    head = {
        "format": FORMAT,
        "version": VERSION,
        "readable_by": READABLE_BY,
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + payload


def unseal(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a claim's file.

    Raises:
        CheckpointError: The file is damaged, or needs a later version of kdp; the text says which.
    """
    import hashlib

    line, _, payload = data.partition(b"\n")
    try:
        head = parse_json(line)
        if not isinstance(head, dict) or head.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            raise CheckpointError("it does not begin like a file of kdp")
        if cast("dict[str, Any]", head)["readable_by"] > VERSION:
            raise CheckpointError(f"it has version {head['version']!r}, but this kdp reads version {VERSION} only")
        if hashlib.sha256(payload).hexdigest() != head["sha256"]:
            raise CheckpointError("its digest does not match its content; the file is cut off or changed")
        body = parse_json(payload)
        if not isinstance(body, dict):
            raise CheckpointError("its second line is no JSON object")
        return cast("dict[str, Any]", body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"it is broken ({type(error).__name__}: {error})") from None


@final
@attrs.frozen(kw_only=True)
class ClaimedDevice:
    """A device that a driver has prepared for a claim.

    Attributes:
        claim: The claim's UID.
        class_name: The class of the driver's backend; "" if an older version wrote the file.
        holding: The device.
    """

    __repr__ = shown

    claim: str
    class_name: str
    holding: Holding

    def seen_by(self, classes: Collection[str]) -> Holding:
        """Return the holding as a process with backends of these classes must judge it."""
        if self.class_name in classes:
            return self.holding
        given = attrs.evolve(self.holding.given, reach=without_ids(self.holding.given.reach))
        return attrs.evolve(self.holding, given=given, is_foreign=True)


def claimed_devices(plugins_dir: Path, *, without: str = "") -> list[ClaimedDevice]:
    """Return the devices of all claims in the drivers' files. Blocks for the disk.

    A file that cannot be read is left out: its driver sets it aside, and logs it.

    Args:
        plugins_dir: The directory with a directory for each driver.
        without: A driver whose files are not read.
    """
    found: list[ClaimedDevice] = []
    with contextlib.suppress(OSError):
        for path in sorted(plugins_dir.glob(f"*/{CLAIMS}/*.json")):
            driver = path.parent.parent.name
            if driver != without and not path.name.startswith("."):
                with contextlib.suppress(CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
                    found += _devices(driver, unseal(reading.read(path, follow=False)))
    return found


def _devices(driver: str, body: Mapping[str, Any]) -> Iterator[ClaimedDevice]:
    """Yield the devices of one claim.

    Raises:
        AttributeError, KeyError, TypeError: The body is no claim.
    """
    claim = body["claim"]
    saved = (Given.of_json(each["given"]) if each.get("given") else Given() for each in body["devices"])
    for part in body["parts"]:
        for use in part["uses"]:
            given = next(saved, Given())
            if part.get("is_released") or use.get("is_admin") or not given.reach:
                continue
            holder = f"claim {claim['namespace']}/{claim['name']}"
            holding = Holding(name=(driver, str(use["device_id"])), given=given, holder=holder)
            yield ClaimedDevice(claim=str(claim["uid"]), class_name=str(body.get("class_name", "")), holding=holding)
