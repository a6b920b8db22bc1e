"""`ClaimStatusWriter`: what claims say of the devices that were prepared for them, in ``status.devices``.

Each device gets the condition ``Ready``, and what the backend knows of its network interface. It is a courtesy to
the claim's readers. It is written beside Prepare, which does not wait for it. If the write fails, the claim is prepared
all the same.

Others write to the same list, as the drivers of other devices, or the vendor's own controller. So a claim is read,
changed in our entries only, and written back if it is still the one that was read.

Source: DRA contract section 3.5.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from ...cluster.api import ApiError
from ...concurrency.backoff import Backoff
from ...errors import sentence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...cluster.api import ClusterApi
    from ...model.claims import Claim
    from .checkpoint import Use

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""Tries for one claim, with growing pauses: about half a minute where the server is away."""

_Object = dict[str, Any]
_Key = tuple[str, str, str, str]


def with_ready(item: Mapping[str, Any], driver: str, devices: Sequence[Use], *, now: str) -> _Object | None:
    """Return a claim whose status says that these devices are ready; None: it says so, or they are not its own.

    Args:
        item: The claim from the API, which stays as it is.
        driver: The driver's name.
        devices: What was prepared.
        now: The time, for what is new.
    """
    status: Mapping[str, Any] = item.get("status") or {}
    allocation: Mapping[str, Any] = status.get("allocation") or {}
    found: Mapping[str, Any] = allocation.get("devices") or {}
    allocated = {_key(each) for each in found.get("results") or ()}
    networks: dict[_Key, _Object] = {}
    for each in devices:
        networks.setdefault((driver, each.pool, each.name, each.share_id), {}).update(each.network)
    before: dict[_Key, _Object] = {_key(each): each for each in status.get("devices") or ()}
    entries = dict(before)
    for key, network in networks.items():
        if key in allocated:
            entries[key] = _ready(before.get(key) or _entry(key), network, now)
    return None if entries == before else {**item, "status": {**status, "devices": [*entries.values()]}}


def _entry(key: _Key) -> _Object:
    driver, pool, device, share = key
    return {"driver": driver, "pool": pool, "device": device, **({"shareID": share} if share else {})}


def _ready(entry: _Object, network: _Object, now: str) -> _Object:
    """Return a device's entry that says that it is ready, and what is known of its network interface."""
    conditions: list[_Object] = list(entry.get("conditions") or ())
    if not any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "the device is prepared for the claim",
            "lastTransitionTime": now,
        }
        conditions = [*(each for each in conditions if each.get("type") != "Ready"), ready]
    return {**entry, "conditions": conditions, **({"networkData": network} if network else {})}


def _key(entry: Mapping[str, Any]) -> _Key:
    return entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID") or ""


@final
class ClaimStatusWriter:
    """Writes ``status.devices`` of one driver's claims. asyncio only; use it from one loop.

    Args:
        api: The API server.
        driver: The driver's name.
        of_node: Whether the devices are the node's own; a claim of others may be changed from any node only.
    """

    def __init__(self, api: ClusterApi, driver: str, *, of_node: bool = True) -> None:
        self._verb = "associated-node:update" if of_node else "arbitrary-node:update"
        self._api = api
        self._driver = driver
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._last_problem: str | None = None

    def prepared(self, claim: Claim, devices: Sequence[Use]) -> None:
        """Have a claim say that these devices are ready; returns at once."""
        self.forget(claim.uid)
        if devices:
            task = self._tasks[claim.uid] = asyncio.create_task(self._write(claim, devices))
            task.add_done_callback(lambda done: self._end(claim.uid, done))

    def forget(self, uid: str) -> None:
        """Write nothing more of a claim: it is undone."""
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Write nothing more."""
        for uid in tuple(self._tasks):
            self.forget(uid)

    def _end(self, uid: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(uid) is done:
            del self._tasks[uid]

    async def _write(self, claim: Claim, devices: Sequence[Use]) -> None:
        backoff = Backoff()
        problem = ""
        try:
            for _ in range(ATTEMPTS):
                try:
                    await self._once(claim, devices)
                except ApiError as error:
                    if error.status == 404:
                        return
                    if error.status in (401, 403, 422):
                        self._warn(
                            f"status.devices of claims is not written: {sentence(error)}; if a permission is missing, "
                            "give the driver's account the verb update on resourceclaims/status, and from Kubernetes "
                            f"1.36 on {self._verb} on resourceclaims/driver, resource name {self._driver}; claims are "
                            "still prepared"
                        )
                        return
                    problem = sentence(error)
                    pause = backoff.next() if error.status != 409 else 0.0  # a conflict is over when it is read again
                    await asyncio.sleep(max(error.retry_after or 0.0, pause))
                else:
                    self._last_problem = None
                    return
            self._warn(f"status.devices of claim {claim.namespace}/{claim.name} is not written: {problem}")
        except Exception:
            logger.exception("%s: status.devices of claim %s/%s", self._driver, claim.namespace, claim.name)

    async def _once(self, claim: Claim, devices: Sequence[Use]) -> None:
        item = await self._api.claim(claim.namespace, claim.name)
        if item["metadata"].get("uid") != claim.uid:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        new = with_ready(item, self._driver, devices, now=now)
        if new is not None:
            await self._api.update_claim_status(new)

    def _warn(self, problem: str) -> None:
        """Log a problem, once as long as it lasts."""
        if problem != self._last_problem:
            self._last_problem = problem
            logger.warning("%s: %s", self._driver, problem)
