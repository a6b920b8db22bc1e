"""Checks of a driver's messages: health, the claims' status, devices that break the rules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...dra import events, objects
from ..checks import Checks, NotApplicable

if TYPE_CHECKING:
    from ...dra.claims import ClaimEntry
    from .scene import DraScene

CHECKS: Checks[DraScene] = Checks()

MOST_MESSAGE = 1024
VERB = "associated-node:update"
FORBIDDEN = (
    'changing status.devices requires resource="resourceclaims/driver", '
    f'verb="[{VERB} arbitrary-node:update]" permission'
)


@CHECKS.add(
    45,
    "a device that breaks the API's rules is not sent",
    expected="the driver names the field, writes nothing that is refused, and what was published stays",
    rule="the API server refuses a slice with 33 attributes as a whole, and good devices with it",
    cure="check slices against the API's limits before you write them, and keep the last good ones",
)
async def _invalid(scene: DraScene) -> str:
    before = await scene.slices()
    await scene.instance.add_invalid_device(True)
    await scene.until(
        lambda: "attributes" in scene.instance.output(), scene.limit(2.0), "the driver did not report 33 attributes"
    )
    await scene.elapse(1.0)
    refused = [each for each in scene.writes() if each[1] == 422]
    scene.require(not refused, f"the API server refused {refused[0] if refused else ''}")
    scene.require(await scene.slices() == before, "a device that breaks the rules has changed what is published")
    await scene.instance.add_invalid_device(False)
    await scene.elapse(0.5)
    scene.require(await scene.slices() == before, "the devices are as before, and are not published as before")
    [line, *_] = [each for each in scene.instance.output().splitlines() if "attributes" in each]
    return line[:200]


@CHECKS.add(
    53,
    "a message of health is cut where a character ends",
    expected="a reason of 1800 bytes is cut to at most 1024 bytes, at the end of a character",
    rule="the kubelet cuts at 1024 bytes, also in the middle of a character",
    cure="cut the message yourself, at the end of a character",
    levers=("fail", "heal"),
)
async def _long_message(scene: DraScene) -> str:
    [device] = await scene.some()

    def reports() -> list[events.HealthReceived]:
        return scene.kubelet.events.of(events.HealthReceived)

    known = (await scene.reported()).unhealthy
    await scene.instance.fail_saying(device["name"], "é" * 900)
    await scene.until(
        lambda: reports()[-1].unhealthy > known, scene.limit(1.0), "the kubelet got no report that it failed"
    )
    message = reports()[-1].messages.get(device["name"], "")
    await scene.instance.heal(device["name"])
    scene.require(message, "the report has no message")
    size = len(message.encode())
    scene.require(size <= MOST_MESSAGE, f"the message has {size} bytes")
    scene.require(message.startswith("é" * 100) and "\ufffd" not in message, f"the message is {message[:20]}...")
    return f"{size} bytes"


async def _entries(scene: DraScene, claim: ClaimEntry) -> list[Any]:
    status = (await scene.stored(claim)).get("status", {})
    return list(status.get("devices") or ())


@CHECKS.add(
    55,
    "entries of other drivers in a claim's status stay, and a missing permission harms no claim",
    expected=(
        "the driver adds its own entries; if the server refuses them, the claim is prepared, and the log says why"
    ),
    rule="status.devices belongs to all drivers of the claim; from 1.36 on it needs verbs of its own",
    cure="read, change your own entries only, write with the resource version; at 403 name the verb and go on",
)
async def _status(scene: DraScene) -> str:
    devices = await scene.some(2)
    foreign = objects.result("other.example.com", "theirs", request="r1", pool="theirs")
    claim = await scene.claim(foreign, scene.result(devices[0]))
    item = await scene.stored(claim)
    theirs = {"driver": "other.example.com", "pool": "theirs", "device": "theirs", "data": {"link": "up"}}
    item["status"]["devices"] = [theirs]
    await scene.server.ask("PUT", f"{objects.claims(claim.name)}/status", item)
    await scene.prepared(claim)
    until = time.monotonic() + max(scene.limit(0.5), 2.0)
    while all(each["driver"] != scene.driver for each in await _entries(scene, claim)):
        if time.monotonic() > until:
            raise NotApplicable("the driver writes no status.devices")
        await scene.elapse(0.05)
    others = [each for each in await _entries(scene, claim) if each["driver"] != scene.driver]
    scene.require([each.get("data") for each in others] == [theirs["data"]], f"another driver's entry became {others}")
    scene.server.faults.refused(403, FORBIDDEN, method="PUT", path="/status", times=None)
    second = await scene.claim_quietly(scene.result(devices[1]))
    await scene.prepared(second)
    await scene.until(lambda: VERB in scene.instance.output(), scene.limit(1.0), "the missing verb is not named")
    scene.server.faults.clear()
    await scene.unprepared(claim, second)
    return "the other driver's entry is still there; the missing verb was named"
