"""The file that describes a claim's devices to its containers."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from typing_extensions import override

import kdp
from kdp.cdi import CdiMount
from kdp.dra.claims.plan import POD_CLAIM
from kdp.dra.claims.prepare import JobOutcome
from kdp.storage import files

from .claim_objects import DRIVER, POOL, claim, result
from .claims_world import Widgets, World, running

ROOT = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = Widgets()
    backend.devices[0] = attrs.evolve(backend.devices[0], attributes={"slot": 0})
    async with running(tmp_path, backend) as found:
        found.metadata = True
        found.start()
        yield found


async def prepared(world: World) -> JobOutcome:
    [outcome] = (await world.preparer.prepare([claim()])).values()
    return outcome


def mounts(world: World) -> list[CdiMount]:
    spec = world.spec(claim())
    assert spec is not None
    return [mount for device in spec.devices for mount in device.edits.mounts]


def told(mount: CdiMount, *versions: str) -> dict[str, Any]:
    """Read it as a program that knows these versions of the format; none: the newest."""
    text, decoder = Path(mount.host_path).read_text(), json.JSONDecoder()
    while text:
        found: dict[str, Any]
        found, end = decoder.raw_decode(text)
        if found["apiVersion"].removeprefix("metadata.resource.k8s.io/") in (versions or ("v1beta1",)):
            return found
        text = text[end:].lstrip()
    raise LookupError(f"no document is of {versions}")


async def test_a_request_is_described_once(world: World) -> None:
    world.api.put(claim(), [result("w1", "gpu/large"), result("w0", "gpu/large")])
    assert (await prepared(world)).error == ""
    [mount] = mounts(world)
    assert mount.container_path == f"{ROOT}/resourceclaims/claim-0/gpu/{DRIVER}-metadata.json"
    assert "ro" in mount.options
    document = told(mount)
    [device, other] = document["requests"][0].pop("devices")
    assert document == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "claim-0", "namespace": "default", "uid": claim().uid, "generation": 1},
        "requests": [{"name": "gpu/large"}],
    }
    assert device == {"driver": DRIVER, "pool": POOL, "name": "w1"}
    assert other == {"driver": DRIVER, "pool": POOL, "name": "w0", "attributes": {"slot": {"int": 0}}}


async def test_a_claim_of_a_template_is_described_below_its_name_in_the_pod(world: World) -> None:
    world.api.put(claim(), [result("w0")])
    world.api.items["default", claim().name]["metadata"]["annotations"] = {POD_CLAIM: "gpus"}
    await prepared(world)
    [mount] = mounts(world)
    assert mount.container_path == f"{ROOT}/resourceclaimtemplates/gpus/r/{DRIVER}-metadata.json"
    assert told(mount)["podClaimName"] == "gpus"


async def test_a_reader_that_knows_one_version_finds_its_own(world: World) -> None:
    """KubeVirt's knew v1alpha1 only, and found nothing."""
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    [mount] = mounts(world)
    older, newer = told(mount, "v1alpha1"), told(mount, "v1beta1")
    assert older.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newer.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert older == newer
    assert told(mount, "v1alpha1", "v1beta1")["apiVersion"].endswith("/v1beta1"), "the newest comes first"


async def test_a_claim_that_is_allocated_anew_is_described_anew(world: World) -> None:
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    world.start()  # after a restart
    world.api.put(claim(), [result("w1")])
    await prepared(world)
    [mount] = mounts(world)
    assert [each["name"] for each in told(mount)["requests"][0]["devices"]] == ["w1"]


async def test_it_goes_with_the_claim(world: World) -> None:
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    assert claim().uid in world.files
    world.metadata = False  # whoever switched it off still cleans up
    world.start()
    await world.preparer.unprepare([claim()])
    assert world.files == []


async def test_it_is_off_by_default(world: World) -> None:
    world.metadata = False
    world.start()
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    assert mounts(world) == []


class Linked(Widgets):
    @override
    def allocate(self, devices: kdp.Allocation) -> kdp.ContainerEdits:
        if "w0" in devices.ids:
            devices.network["w0"] = kdp.NetworkData(interface_name="eth1", ips=["192.0.2.5/24"])
        return super().allocate(devices)


async def test_what_allocate_knows_of_an_interface_is_in_the_file_and_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, Linked()) as world:
        world.metadata = True
        world.start()
        world.api.put(claim(), [result("w1", "gpu/large"), result("w0", "gpu/large")])
        outcome = await prepared(world)
        network = {"interfaceName": "eth1", "ips": ["192.0.2.5/24"]}
        assert {each.name: each.network for each in outcome.devices} == {"w0": network, "w1": {}}
        [mount] = mounts(world)
        w1, w0 = told(mount)["requests"][0]["devices"]
        assert w0["networkData"] == network
        assert "networkData" not in w1
        world.start()
        assert await prepared(world) == outcome


@pytest.mark.parametrize(("written", "requests"), [(0, {"b"}), (1, {"a", "b"})])
async def test_a_claim_is_prepared_although_the_disk_is_full_in_the_middle_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, written: int, requests: set[str]
) -> None:
    """The file is written before `allocate`, and anew when that has told of an interface: then the first one stays."""
    write, left = files._write, written

    def fill(descriptor: int, data: bytes) -> None:
        nonlocal left
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        is_of_a = "metadata" in path.parts and path.name.lstrip(".").startswith("a.")
        if is_of_a and not left:
            write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= is_of_a
        write(descriptor, data)

    monkeypatch.setattr(files, "_write", fill)
    async with running(tmp_path, Linked()) as world:
        world.metadata = True
        world.start()
        world.api.put(claim(), [result("w0", "a"), result("w1", "b")])
        assert (await prepared(world)).error == ""
        described = {Path(mount.container_path).parent.name: told(mount) for mount in mounts(world)}
    assert described.keys() == requests
    assert not [each for each in described.values() if "networkData" in each["requests"][0]["devices"][0]]
    assert "its containers get no metadata of request a: " in caplog.text


@pytest.mark.parametrize("uid", ["..", "a/b", "x" * 129])
async def test_a_claim_uid_that_is_a_path_removes_nothing(world: World, uid: str) -> None:
    world.api.put(claim(), [result("w0")])
    await prepared(world)
    before = world.files
    for call in (world.preparer.unprepare, world.preparer.prepare):
        outcomes = await call([attrs.evolve(claim(1), uid=uid), claim()])
        assert outcomes[uid].error.startswith("claim UID ")
        assert outcomes[claim().uid].error == "", "each claim is one of its own"
    assert world.files == before
    assert (world.data / "claims").is_dir()


async def test_a_spec_that_is_named_after_no_uid_is_nobodys(world: World) -> None:
    (world.folder / "cdi").mkdir(exist_ok=True)
    for name in ("..", ".", "-"):
        (world.folder / f"cdi/kdp_{DRIVER}_claim_{name}.json").write_text("{}")
    assert await world.preparer.recover() == []
