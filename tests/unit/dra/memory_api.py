"""An API server's ResourceSlices in memory: versions, conflicts, watches, dropped fields; and faults on request."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import attrs

from kdp.cluster.api import ApiError, Slices, WatchEvent

Object = dict[str, Any]
OF_GATES: Mapping[str, tuple[str, ...]] = {
    "DRAPartitionableDevices": ("consumesCounters", "sharedCounters"),
    "DRADeviceTaints": ("taints",),
    "DRAConsumableCapacity": ("allowMultipleAllocations", "requestPolicy"),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
}


@attrs.frozen
class Written:
    """A write that was taken."""

    verb: str
    name: str


class MemoryServer:
    """What the server stores, and how it changes; synchronous.

    Attributes:
        items: The stored slices by name.
        version: The newest resource version.
        events: All that happened, each with its resource version.
        writes: What drivers wrote.
        gates_off: Feature gates whose fields are dropped.
        nodes: UIDs by name.
        most_taints: Taints that a device may have.
        oldest: Watches from before this version get 410.
        release: What ``/version`` says.
    """

    def __init__(self) -> None:
        self.items: dict[str, Object] = {}
        self.version = 100
        self.events: list[tuple[int, WatchEvent]] = []
        self.writes: list[Written] = []
        self.gates_off: set[str] = set()
        self.nodes = {"node-0": "uid-1"}
        self.most_taints = 16
        self.oldest = 0
        self.release = "v1.37.1"
        self.uids = 0

    # -- what a driver does --------------------------------------------------------------------------------------------

    def listed(self, driver: str) -> Slices:
        found = [copy.deepcopy(item) for item in self.items.values() if item["spec"]["driver"] == driver]
        return Slices(found, str(self.version))

    def node(self, name: str) -> Object:
        if name not in self.nodes:
            raise ApiError(f"get nodes {name}: 404", status=404)
        return {"metadata": {"name": name, "uid": self.nodes[name]}}

    def create(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        name = item["metadata"]["name"]
        if name in self.items:
            raise ApiError(f"create resourceslices {name}: 409 AlreadyExists", status=409)
        self._judge(item)
        if dry_run:
            return copy.deepcopy(dict(item))
        self.writes.append(Written("create", name))
        return self.put(item)

    def update(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        self._check(item, "update")
        self._judge(item)
        if dry_run:
            return copy.deepcopy(dict(item))
        self.writes.append(Written("update", item["metadata"]["name"]))
        return self.put(item)

    def delete(self, item: Mapping[str, Any]) -> None:
        self._check(item, "delete")
        self.writes.append(Written("delete", item["metadata"]["name"]))
        self.remove(item["metadata"]["name"])

    def _judge(self, item: Mapping[str, Any]) -> None:
        for place, device in enumerate(item["spec"].get("devices", ())):
            if len(device.get("taints", ())) > self.most_taints:
                field = f"spec.devices[{place}].taints"
                raise ApiError(f"{item['metadata']['name']} is invalid: {field}: Too many", status=422)

    def _check(self, item: Mapping[str, Any], verb: str) -> None:
        name = item["metadata"]["name"]
        if name not in self.items:
            raise ApiError(f"{verb} resourceslices {name}: 404", status=404)
        stored = self.items[name]["metadata"]
        assert item["metadata"].keys() >= {"uid", "resourceVersion"}, "a write must say what it replaces"
        if any(item["metadata"][key] != stored[key] for key in ("uid", "resourceVersion")):
            raise ApiError(f"{verb} resourceslices {name}: 409 Conflict", status=409)

    # -- what happens --------------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> Object:
        """Store an object, whoever wrote it."""
        stored: Object = copy.deepcopy(dict(item))
        stored["spec"] = self._without_gates(stored["spec"])
        name = stored["metadata"]["name"]
        self.version += 1
        for device in stored["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", f"time {self.version}")
        is_new = name not in self.items
        self.uids += is_new
        uid = f"slice-{self.uids}" if is_new else self.items[name]["metadata"]["uid"]
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.items[name] = stored
        self.events.append((self.version, WatchEvent("ADDED" if is_new else "MODIFIED", copy.deepcopy(stored))))
        return copy.deepcopy(stored)

    def remove(self, name: str) -> None:
        self.version += 1
        item = copy.deepcopy(self.items.pop(name))
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, WatchEvent("DELETED", item)))

    def wipe(self) -> None:
        """Do as a kubelet that starts."""
        for name in list(self.items):
            self.remove(name)

    def compact(self) -> None:
        """Forget what happened: watches must begin anew."""
        self.oldest = self.version

    def _without_gates(self, value: Any) -> Any:
        dropped = {field for gate in self.gates_off for field in OF_GATES[gate]}
        if isinstance(value, dict):
            return {key: self._without_gates(each) for key, each in value.items() if key not in dropped}
        if isinstance(value, list):
            return [self._without_gates(each) for each in value]
        return value

    def devices(self) -> list[str]:
        """Return the names of the devices, in the order of the slices."""
        items = sorted(self.items.values(), key=lambda item: item["metadata"]["name"])
        return [device["name"] for item in items for device in item["spec"].get("devices", ())]

    def generations(self) -> set[int]:
        return {item["spec"]["pool"]["generation"] for item in self.items.values()}


class MemoryApi:
    """`ClusterApi` over a `MemoryServer`.

    Attributes:
        server: The server.
        fault: Asked before each request; what it returns is raised. None: nothing fails.
        after: The same, but when the write is already done.
        asked: The verbs of all requests.
        requests: Nobody counts them.
    """

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.fault: Callable[[str], ApiError | None] = lambda _: None
        self.after: Callable[[str], ApiError | None] = lambda _: None
        self.asked: list[str] = []
        self.requests: Mapping[tuple[str, ...], int] = {}
        self._changed = asyncio.Event()
        self._cuts = 0

    async def _request(self, verb: str, do: Callable[[], Any]) -> Any:
        self.asked.append(verb)
        await asyncio.sleep(0)
        error = self.fault(verb)
        if error is not None:
            raise error
        found = do()
        self.tell()
        await asyncio.sleep(0)
        error = self.after(verb)
        if error is not None:
            raise error
        return found

    def tell(self) -> None:
        """Have the watches look."""
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Cut all watches."""
        self._cuts += 1
        self.tell()

    async def version(self) -> str:
        return str(await self._request("version", lambda: self.server.release))

    async def node(self, name: str) -> Object:
        found: Object = await self._request("node", lambda: self.server.node(name))
        return found

    async def claim(self, namespace: str, name: str) -> Object:
        raise NotImplementedError

    async def update_claim_status(self, claim: Mapping[str, Any]) -> Object:
        raise NotImplementedError

    async def create_event(self, event: Mapping[str, Any]) -> Object:
        raise NotImplementedError

    async def slices(self, *, driver: str, node: str | None = None) -> Slices:
        found: Slices = await self._request("list", lambda: self.server.listed(driver))
        return found

    async def create_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        verb = "judge" if dry_run else "create"
        found: Object = await self._request(verb, lambda: self.server.create(item, dry_run=dry_run))
        return found

    async def update_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        verb = "judge" if dry_run else "update"
        found: Object = await self._request(verb, lambda: self.server.update(item, dry_run=dry_run))
        return found

    async def delete_slice(self, item: Mapping[str, Any]) -> None:
        await self._request("delete", lambda: self.server.delete(item))

    async def watch_slices(
        self, *, driver: str, node: str | None = None, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        cuts, at = self._cuts, int(resource_version)
        await self._request("watch", lambda: None)
        while True:
            if at < self.server.oldest:
                raise ApiError("watch resourceslices: 410 Expired", status=410)
            changed = self._changed
            for version, event in [each for each in self.server.events if each[0] > at]:
                at = version
                if event.item["spec"]["driver"] == driver:
                    yield event
            if self._cuts != cuts:
                raise ApiError("watch resourceslices: the API server was not reached: cut")
            if self._changed is changed:
                await changed.wait()
