"""The lives of test_prepare_properties.py with metadata files, and disks that get full.

Besides the invariants there:

8. The containers of a request have one file, read-only and whole, which says what is allocated to it; none only if it
   could not be written.
9. It says of a device what its slice does, and what the backend told of its network interface, unless that could not be
   written.
10. A claim is prepared although its files cannot be written.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from typing_extensions import override

import kdp
from kdp.cdi import CdiMount, parse_spec
from kdp.dra.claims.plan import POD_CLAIM
from kdp.storage import files

from ...mutants import holds, live
from .claim_objects import DRIVER, POOL, claim, result
from .test_prepare_properties import ALLOCATIONS, DEVICES, NUMBERS, Hardware, Node

ROOT = "/var/run/kubernetes.io/dra-device-attributes"
FROM_TEMPLATE, PRIORITISED = 1, 2
"""Claims of these numbers are."""


class Linked(Hardware):
    """Its devices have attributes, and all but w1 an interface."""

    @override
    def discover(self) -> list[kdp.Device]:
        return [attrs.evolve(each, attributes={"slot": slot}) for slot, each in enumerate(super().discover())]

    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        found = super().allocate(devices)
        assert devices.claim is not None
        for device in {*devices.ids} - {"w1"}:
            devices.network[device] = kdp.NetworkData(interface_name=interface_of(devices.claim, device))
        return found


def interface_of(names: kdp.Claim, device: str) -> str:
    return f"eth{names.uid[-1]}-{device}"


class Described(Node):
    describes: ClassVar[bool] = True
    backend: ClassVar[type[Hardware]] = Linked

    def __init__(self) -> None:
        self.lost: set[int] = set()
        super().__init__()

    @rule(number=NUMBERS, devices=ALLOCATIONS)
    @override
    def allocate(self, number: int, devices: list[str]) -> None:
        names = [f"{each}/large" if number == PRIORITISED else each for each in "ab"]
        self.api.put(claim(number), [result(each, name) for each, name in zip(devices, names, strict=False)])
        if number == FROM_TEMPLATE:
            self.api.items["default", claim(number).name]["metadata"]["annotations"] = {POD_CLAIM: "gpus"}

    @rule(number=NUMBERS, of=st.sampled_from(["a", "b"]), written=st.integers(0, 1))
    def prepare_on_a_full_disk(self, number: int, of: str, written: int) -> None:
        """The file of a request is written so many times before the disk is full; then half of it is."""
        self.unprepare(number)
        write, left = files._write, written

        def fill(descriptor: int, data: bytes) -> None:
            nonlocal left
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if "metadata" not in path.parts or path.name.lstrip(".").partition(".")[0] != of:
                return write(descriptor, data)
            left -= 1
            if left >= 0:
                return write(descriptor, data)
            write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        self.lost.add(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "_write", fill)
            [outcome] = self.runner.run(self.preparer.prepare([claim(number)])).values()
        self.prepare(number)
        holds(
            10, not outcome.error or number not in self.prepared, f"without the files it is an error: {outcome.error}"
        )

    @rule(number=NUMBERS)
    @override
    def prepare(self, number: int) -> None:
        before = self.hardware.asked
        super().prepare(number)
        if self.hardware.asked != before:
            self.lost.discard(number)
        if number in self.prepared:
            self.look(number)

    def look(self, number: int) -> None:
        """Judge what the containers of a prepared claim find."""
        results = self.api.items["default", claim(number).name]["status"]["allocation"]["devices"]["results"]
        folder = "resourceclaimtemplates/gpus" if number == FROM_TEMPLATE else f"resourceclaims/claim-{number}"
        expected = {
            f"{ROOT}/{folder}/{each['request'].partition('/')[0]}/{DRIVER}-metadata.json": each for each in results
        }
        file = self.cdi.file(f"{DRIVER}/claim", claim(number).uid)
        spec = parse_spec(file.read_bytes(), where="the spec")
        mounts = [mount for device in spec.devices for mount in device.edits.mounts]
        paths = [mount.container_path for mount in mounts]
        there = set(paths)
        is_so = there <= {*expected} if number in self.lost else there == {*expected}
        holds(8, is_so and len(there) == len(paths), f"the files are {paths}, the requests {[*expected]}")
        for mount in mounts:
            self.read(number, mount, expected[mount.container_path])

    def read(self, number: int, mount: CdiMount, allocated: dict[str, Any]) -> None:
        """Judge one file."""
        holds(8, "ro" in mount.options, f"{mount.container_path} can be written")
        try:
            told, older = map(json.loads, Path(mount.host_path).read_text().splitlines())
        except (OSError, ValueError) as error:
            holds(8, False, f"{mount.container_path} cannot be read: {error}")
            raise
        holds(8, older == {**told, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}, f"{told} is told, and {older}")
        [request] = told.pop("requests")
        names = claim(number)
        template = {"podClaimName": "gpus"} if number == FROM_TEMPLATE else {}
        of_the_claim = {
            "apiVersion": "metadata.resource.k8s.io/v1beta1",
            "kind": "DeviceMetadata",
            "metadata": {"name": names.name, "namespace": names.namespace, "uid": names.uid, "generation": 1},
            **template,
        }
        holds(8, told == of_the_claim, f"it is of {told} and not of {of_the_claim}")
        found = [(each["driver"], each["pool"], each["name"]) for each in request["devices"]]
        holds(
            8, request["name"] == allocated["request"], f"it is of {request['name']} and not of {allocated['request']}"
        )
        holds(8, found == [(DRIVER, POOL, allocated["device"])], f"{found} is told, {allocated} is allocated")
        [device] = request["devices"]
        slot = DEVICES.index(allocated["device"])
        holds(9, device.get("attributes") == {"slot": {"int": slot}}, f"{device} is told")
        interface = interface_of(names, allocated["device"])
        network = None if allocated["device"] == "w1" else {"interfaceName": interface}
        is_lost = number in self.lost and "networkData" not in device
        holds(9, is_lost or device.get("networkData") == network, f"{device} is told, the interface is {interface}")


def test_every_life_keeps_the_invariants() -> None:
    live(Described, examples=40, steps=20)
