"""A small DRA driver in bare grpc.aio with one switchable defect: what the checks must be able to find.

Without a defect it does everything right, so that a failed check has found the defect and nothing else. It asks the
simulated API server in this process, with the delays that HTTP would have.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import httpx2
from typing_extensions import override

from kdp.kubelet.server import start_server, stop_server
from kdp.proto import dra_v1_pb2 as v1
from kdp.proto import dra_v1beta1_pb2 as v1beta1
from kdp.proto import drahealth_v1_pb2 as health
from kdp.proto import pluginregistration_v1_pb2 as registration
from kdp_testkit.conformance.dra.subject import DraNode, DraSubject
from kdp_testkit.conformance.instance import Ending, Instance, Usage

# ruff: noqa: ASYNC240 - sockets of a temporary directory

DRIVER = "bare.example.com"
DEVICES = ("d0", "d1", "d2", "s0")
SHARED = "s0"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
NODES = "/api/v1/nodes"
EXTENDED = "example.com/bare"
LOOK = 0.1

_MESSAGES: dict[str, Any] = {"v1": v1, "v1beta1": v1beta1}


class Refusal(Exception):
    """What is wrong with a claim."""


class Bare(Instance):
    """One life of the driver; what survives it is in a file, as it must be."""

    def __init__(self, node: DraNode, defect: str) -> None:
        self.node = node
        self.defect = defect
        self.data = node.paths.plugins_dir / DRIVER
        self.service = self._fitting(self.data, "dra{}.sock")
        self.registration = self._fitting(node.paths.plugins_registry_dir, DRIVER + "{}-reg.sock")
        self.words: list[str] = []
        self.api = httpx2.AsyncClient(
            base_url=json.loads(node.kubeconfig.read_text())["clusters"][0]["cluster"]["server"],
            timeout=60.0 if defect == "no_deadline" else 5.0,
        )
        self.servers: list[grpc.aio.Server] = []
        self.asked_at: float | None = None
        self.leave = anyio.Event()
        self.ended = anyio.Event()
        self.removes = True
        self.sick: set[str] = set()
        self.changed = asyncio.Event()
        self.lock = asyncio.Lock()
        self.gone: set[str] = set()
        self.owner: list[dict[str, Any]] = []
        self.written_at = 0.0
        self.no_taints = False
        self.is_spoiled = False
        self.is_jammed = False
        self.owed = set[str]()
        self.messages: dict[str, str] = {}
        self.background: set[asyncio.Task[Any]] = set()
        self.memory: dict[str, list[dict[str, Any]]] | None = None
        self.allocations = 0

    def _fitting(self, directory: Path, name: str) -> Path:
        uid = self.node.pod_uid
        path = directory / name.format(f"-{uid}" if uid else "")
        if len(os.fsencode(path)) > 107 and self.defect != "long_names":
            digest = hashlib.sha256(f"{path.name}{time.time() if self.defect == 'random_names' else ''}".encode())
            return directory / f"{digest.hexdigest()[:22]}.sock"
        return path

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self, wake: Callable[[], None], *, task_status: Any) -> None:
        try:
            task_status.started()
            self.data.mkdir(parents=True, exist_ok=True)
            self.node.cdi.mkdir(exist_ok=True)
            await self._find_registry()
            if self.defect == "registers_first":
                await self._serve(self.registration, {"pluginregistration.Registration": self._watcher()})
                await anyio.sleep(1.0)
                await self._serve(self.service, self._services())
            else:
                await self._serve(self.service, self._services())
                await self._serve(self.registration, {"pluginregistration.Registration": self._watcher()})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._publish)
                tasks.start_soon(self._collect)
                await self.leave.wait()
                tasks.cancel_scope.cancel()
        except (OSError, RuntimeError) as error:
            self.words.append(str(error))
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()
            now = time.monotonic()
            self.ending = Ending(seconds=now - (self.asked_at or now), code=None, asked=self.asked_at is not None)
            self.ended.set()
            wake()

    async def _find_registry(self) -> None:
        while not (directory := self.registration.parent).is_dir() and not self.leave.is_set():
            if self.defect != "says_nothing":
                self.words.append(f"{directory} is missing; is it mounted?")
            await anyio.sleep(LOOK)

    async def _end(self) -> None:
        for server in reversed(self.servers):
            await stop_server(server, 1.0 if self.removes else None)
        if self.removes and self.defect != "leaves_sockets":
            self.registration.unlink(missing_ok=True)
            self.service.unlink(missing_ok=True)
            if self.defect == "unlinks_all":
                for path in (*self.registration.parent.glob(f"{DRIVER}*"), *self.data.glob("dra*.sock")):
                    path.unlink()
        elif self.defect == "leaves_sockets":
            for path in (self.registration, self.service):
                _dead(path)
        if self.defect == "deletes_slices" and self.removes:
            for item in await self._slices():
                await self._ask("DELETE", f"{SLICES}/{item['metadata']['name']}")
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await self.api.aclose()

    @override
    async def stop(self, within: float) -> Ending:
        self.asked_at = self.asked_at or time.monotonic()
        self.leave.set()
        self._wake()
        with anyio.fail_after(within):
            await self.ended.wait()
        assert self.ending is not None
        return self.ending

    @override
    async def kill(self) -> None:
        self.removes = False
        await self.stop(10)
        for path in (self.registration, self.service):
            _dead(path)

    @override
    def output(self) -> str:
        return "\n".join(self.words)

    @override
    def usage(self) -> Usage:
        return Usage.of_process(os.getpid())

    @override
    async def fail(self, device: str) -> None:
        self.sick.add(device)
        self._wake()

    @override
    async def heal(self, device: str) -> None:
        self.sick.discard(device)
        self._wake()

    @override
    async def vanish(self, device: str) -> None:
        self.gone.add(device)
        self._wake()

    @override
    async def add(self, device: str = "") -> None:
        self.gone.discard(device)
        self._wake()

    @override
    async def fail_saying(self, device: str, message: str) -> None:
        self.messages[device] = message
        await self.fail(device)

    @override
    async def add_invalid_device(self, is_spoiled: bool) -> None:
        self.is_spoiled = is_spoiled
        self._wake()

    @override
    async def block_release(self, is_jammed: bool) -> None:
        self.is_jammed = is_jammed
        while not is_jammed and self.owed and self.defect != "never_releases":
            self._forget(self.owed.pop())

    @override
    def preparations(self) -> int | None:
        return self.allocations

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # -- the wire ------------------------------------------------------------------------------------------------------

    async def _serve(self, path: Path, services: dict[str, dict[str, Any]]) -> None:
        if path.exists() and self.defect == "keeps_dead_sockets":
            return  # "address already in use"
        path.unlink(missing_ok=True)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        for name, handlers in services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_insecure_port(f"unix:{path}")
        await start_server(server)
        self.servers.append(server)

    def _watcher(self) -> dict[str, Any]:
        return {
            "GetInfo": _method(self._info, registration.InfoRequest),
            "NotifyRegistrationStatus": _method(self._notified, registration.RegistrationStatus),
        }

    def _services(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for version, messages in _MESSAGES.items():
            if version == "v1beta1" and self.defect == "only_v1":
                continue
            found[f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"] = {
                "NodePrepareResources": _method(self._preparing(messages), messages.NodePrepareResourcesRequest),
                "NodeUnprepareResources": _method(self._unpreparing(messages), messages.NodeUnprepareResourcesRequest),
            }
        stream: Any = grpc.unary_stream_rpc_method_handler(
            self._watch, health.NodeWatchResourcesRequest.FromString, _serialized
        )
        if self.defect != "health_unimplemented":
            for version in ("v1", "v1alpha1"):
                found[f"{version}.DRAResourceHealth"] = {"NodeWatchResources": stream}
        return found

    @property
    def has_health(self) -> bool:
        return self.defect not in ("without_health", "health_unimplemented")

    async def _info(self, _: Any, __: Any) -> registration.PluginInfo:
        versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        if self.defect == "old_first":
            versions.reverse()
        if self.has_health:
            versions += ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self.service), supported_versions=versions
        )

    async def _notified(self, request: Any, _: Any) -> registration.RegistrationStatusResponse:
        if not request.plugin_registered and self.defect == "ends_when_refused":
            self.leave.set()
        return registration.RegistrationStatusResponse()

    async def _watch(self, _: Any, __: Any) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        if not self.has_health:
            await anyio.sleep_forever()
        while not self.leave.is_set():
            changed = self.changed
            message = health.NodeWatchResourcesResponse()
            for name in DEVICES[: 1 if self.defect == "part_of_health" else None]:
                device = message.devices.add(health=2 if name in self.sick and self.defect != "hides_faults" else 1)
                device.message = self._cut(self.messages.get(name, ""))
                device.device.pool_name, device.device.device_name = self.node.name, name
            yield message
            await changed.wait()

    def _cut(self, text: str) -> str:
        if self.defect == "long_messages" or len(text.encode()) <= 1024:
            return text
        return text.encode()[:1021].decode(errors="ignore") + "..."

    # -- the API server ------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = await self.api.request(method, path, json=body)
        if answer.status_code >= 300:
            raise Refusal(f"the API server answered {answer.status_code}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    async def _slices(self) -> list[dict[str, Any]]:
        items = (await self._ask("GET", f"{SLICES}?fieldSelector=spec.driver={DRIVER}"))["items"]
        return list(items)

    async def _publish(self) -> None:
        await self._until_vacant()
        pause = LOOK
        while True:
            try:
                if not (self.written_at and self.defect == "publishes_once"):
                    await self._write()
                pause = LOOK
            except (Refusal, httpx2.HTTPError) as error:
                pause = LOOK if self.defect == "storms" else min(2 * pause, 5.0)
                if self.defect != "hides_denials":
                    self.words.append(str(error))
            with anyio.move_on_after(pause):
                await (self.changed.wait() if self.defect == "writes_each_flip" else anyio.sleep_forever())

    async def _until_vacant(self) -> None:
        while self.defect != "beside_plugin":
            with suppress(Refusal, httpx2.HTTPError):
                found = (await self._ask("GET", f"{NODES}/{self.node.name}"))["status"]["allocatable"].get(
                    EXTENDED, "0"
                )
                if found == "0":
                    return
                self.words.append(f"the node has {found} of {EXTENDED}")
            await anyio.sleep(LOOK)

    async def _write(self) -> None:
        name = f"{self.node.name}-{DRIVER}"
        found = {each["metadata"]["name"]: each for each in await self._slices()}
        item = found.get(name)
        sick: set[str] = set() if self.defect == "no_taints" else set(self.sick)
        if self.is_spoiled and self.defect != "sends_invalid":
            self.words.append("a device has 33 attributes, and is not sent")
            return
        present = [each for each in DEVICES if each not in self.gone and not (self.no_taints and each in sick)]
        if self.defect == "unpublishes" and not present:
            if item is not None:
                await self._ask("DELETE", f"{SLICES}/{name}")
            return
        if item is None:
            await self._stored("POST", SLICES, self._slice(name, present, sick, await self._owner()))
            return
        devices = item["spec"].get("devices", ())
        if self.defect == "keeps_foreign_edits" and devices[0]["name"] == "foreign":
            return
        has = {each["name"]: bool(each.get("taints")) for each in devices}
        if has == {each: each in sick for each in present} and not self.is_spoiled and self.defect != "writes_for_ever":
            return
        if self.no_taints and self.defect == "publishes_untainted":
            return
        is_soon = time.monotonic() - self.written_at < 1.0
        if is_soon and self.defect not in ("writes_each_flip", "writes_for_ever"):
            return
        wanted = self._slice(name, present, sick, [])
        if self.defect in ("writes_for_ever", "generation_each_time"):
            wanted["spec"]["pool"]["generation"] = item["spec"]["pool"]["generation"] + 1
        await self._stored("PUT", f"{SLICES}/{name}", {**item, "spec": wanted["spec"]})

    async def _owner(self) -> list[dict[str, Any]]:
        if self.defect == "no_owner":
            return []
        if not self.owner or self.defect != "keeps_owner":
            meta = (await self._ask("GET", f"{NODES}/{self.node.name}"))["metadata"]
            self.owner = [{"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}]
        return self.owner

    async def _stored(self, method: str, path: str, item: dict[str, Any]) -> None:
        self.written_at = time.monotonic()
        stored = await self._ask(method, path, item)
        kept = [bool(each.get("taints")) for each in stored["spec"].get("devices", ())]
        if self.defect != "writes_dropped" and kept != [bool(each.get("taints")) for each in item["spec"]["devices"]]:
            self.no_taints = True
            if self.defect != "hides_gate":
                self.words.append("the gate DRADeviceTaints is off")

    def _slice(self, name: str, present: list[str], sick: set[str], owners: list[dict[str, Any]]) -> dict[str, Any]:
        taint = {"key": f"{DRIVER}/unhealthy", "effect": "NoSchedule"}
        devices = [
            {
                "name": each,
                **({"taints": [taint]} if each in sick else {}),
                **({"allowMultipleAllocations": True} if each == SHARED else {}),
            }
            for each in present
        ]
        if self.is_spoiled:
            devices.append({"name": "spoiled", "attributes": {f"a{number}": {"int": 0} for number in range(33)}})
        pool = {"name": self.node.name, "generation": 1, "resourceSliceCount": 1}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": owners},
            "spec": {"driver": DRIVER, "nodeName": self.node.name, "pool": pool, "devices": devices},
        }

    # -- claims --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, list[dict[str, Any]]]:
        """What is prepared, by UID."""
        if self.defect == "remembers" and self.memory is not None:
            return self.memory
        try:
            found: dict[str, list[dict[str, Any]]] = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            if self.defect == "ends_when_damaged":
                self.leave.set()
            if self.defect == "drops_damaged":
                self.file.unlink()
            else:
                self.file.rename(self.file.with_suffix(f".bad-{time.time_ns()}"))
            if self.defect != "hides_damage":
                self.words.append(f"{self.file} is damaged")
            return {}
        return found

    @property
    def file(self) -> Path:
        return self.data / ("new-state.json" if self.defect == "new_format" else "state.json")

    def _save(self, state: dict[str, list[dict[str, Any]]]) -> None:
        self.memory = state
        self.file.write_text(json.dumps(state))

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Have the claims alone, also from other processes; the kernel gives the lock back."""
        async with self.lock:
            if self.defect == "no_file_lock":
                yield
                return
            if self.defect == "stale_lock":
                path = self.data / "lock"
                while True:
                    with suppress(FileExistsError):
                        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                        break
                    await anyio.sleep(0.01)
                try:
                    yield
                finally:
                    if self.removes:
                        path.unlink()
                return
            file = os.open(self.data / "lock", os.O_CREAT | os.O_RDWR)
            try:
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    await anyio.sleep(0.01)
                yield
            finally:
                os.close(file)

    def _preparing(self, messages: Any) -> Any:
        async def prepare(request: Any, context: Any) -> Any:
            reply = messages.NodePrepareResourcesResponse()
            if not request.claims and self.defect == "empty_is_error":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
            for claim in request.claims:
                entry = reply.claims[claim.uid]
                try:
                    devices = await self._shielded(claim)
                except (Refusal, httpx2.HTTPError, OSError) as error:
                    if self.defect == "fails_whole_call":
                        await context.abort(grpc.StatusCode.INTERNAL, str(error))
                    entry.error = str(error) or type(error).__name__
                    continue
                for device in devices:
                    added = entry.devices.add(
                        request_names=[device["request"]],
                        pool_name=device["pool"],
                        device_name=device["device"],
                        cdi_device_ids=[device["cdi"]],
                    )
                    if device["share"] and messages is v1 and self.defect != "no_share_id":
                        added.share_id = device["share"]
                self.background.add(asyncio.create_task(self._say_ready(claim, devices)))
            return reply

        return prepare

    async def _say_ready(self, claim: Any, devices: list[dict[str, Any]]) -> None:
        path = f"{CLAIMS}/{claim.name}"
        try:
            item = await self._ask("GET", path)
            ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": ""}
            ours = [
                {"driver": DRIVER, "pool": each["pool"], "device": each["device"], "conditions": [ready]}
                for each in devices
            ]
            others = [each for each in item["status"].get("devices", ()) if each["driver"] != DRIVER]
            item["status"]["devices"] = ours if self.defect == "replaces_status" else [*others, *ours]
            if not any(each["share"] for each in devices):
                await self._ask("PUT", f"{path}/status", item)
        except (Refusal, httpx2.HTTPError) as error:
            if self.defect != "hides_status_refusal":
                self.words.append(str(error))

    async def _shielded(self, claim: Any) -> list[dict[str, Any]]:
        if self.defect not in ("late_prepare", "prepares_twice"):
            async with self._alone():
                return await self._prepare(claim)
        preparing = asyncio.create_task(self._prepare(claim))
        self.background.add(preparing)  # else it asks on a connection that is made after the client's end
        return await asyncio.shield(preparing)

    async def _prepare(self, claim: Any) -> list[dict[str, Any]]:
        state = self.state
        if claim.uid in state and self.defect != "forgets":
            devices = state[claim.uid]
            if self.defect != "trusts_boot" and any(each["boot"] != self.node.boot_id for each in devices):
                self.allocations += 1
                devices = [{**each, "boot": self.node.boot_id} for each in devices]
                self._save({**state, claim.uid: devices})
            if self.defect != "trusts_specs":
                self._write_specs(claim.uid, devices)
            return devices
        if self.defect == "trusts_begun":
            self._save({**state, claim.uid: []})
        item = await self._ask("GET", f"{CLAIMS}/{claim.name}")
        if item["metadata"]["uid"] != claim.uid and self.defect != "ignores_uid":
            raise Refusal(f"claim {claim.name} got replaced")
        allocation = item.get("status", {}).get("allocation")
        if allocation is None:
            raise Refusal(f"claim {claim.name} is not allocated")
        self.allocations += 1
        devices = [
            self._device(claim, result, state, item["metadata"].get("annotations", {}))
            for result in allocation["devices"]["results"]
            if result["driver"] == DRIVER or self.defect == "takes_all_results"
        ]
        for config in allocation["devices"].get("config", ()):
            if config["opaque"]["driver"] == DRIVER or self.defect == "reads_all_config":
                raise Refusal(f"unknown config {config['opaque']['parameters']}")
        if self.defect != "no_specs":
            self._write_specs(claim.uid, devices)
        self._save({**self.state, claim.uid: devices})
        return devices

    def _device(
        self,
        claim: Any,
        result: dict[str, Any],
        state: dict[str, list[dict[str, Any]]],
        annotations: dict[str, str],
    ) -> dict[str, Any]:
        uid = claim.uid
        name, request = result["device"], result["request"]
        is_admin = bool(result.get("adminAccess")) and self.defect != "refuses_admin"
        if name not in DEVICES and self.defect not in ("takes_all_results", "invents_devices"):
            raise Refusal("device gone" if self.defect == "names_no_device" else f"device {name} is gone")
        share = "" if self.defect == "one_share" else result.get("shareID", "")
        owned = [
            each
            for other, held in state.items()
            if other != uid
            for each in held
            if not each["admin"] and each["share"] == share
        ]
        if self.defect != "gives_twice" and not is_admin and any(each["device"] == name for each in owned):
            raise Refusal(f"device {name} has an owner")
        if self.defect == "fussy_names" and request.startswith("container-"):
            raise Refusal(f"request {request} is unknown")
        if self.defect != "keeps_subrequest":
            request = request.partition("/")[0]
        suffix = f"-{self.allocations}" if self.defect == "forgets" else ""
        suffix += f"-{share}" if share else ""
        cdi = "all" if self.defect == "one_cdi_device" else f"{request.replace('/', '.')}-{name}"
        return {
            "request": "" if self.defect == "no_request" else request,
            "pool": result["pool"],
            "device": name,
            "cdi": f"{DRIVER}/claim={uid}-{cdi}{suffix}",
            "folder": self._folder(claim, annotations.get("resource.kubernetes.io/pod-claim-name", "")),
            "share": share,
            "admin": is_admin,
            "boot": self.node.boot_id,
            "claim": claim.name,
        }

    def _folder(self, claim: Any, pod_claim: str) -> str:
        is_made = pod_claim and self.defect != "overlooks_templates"
        own = f"resourceclaimtemplates/{pod_claim}" if is_made else f"resourceclaims/{claim.name}"
        return f"/var/run/kubernetes.io/dra-device-attributes/{own}"

    def _describe(self, uid: str, device: dict[str, Any]) -> dict[str, Any]:
        """Write a device's metadata, and return their mount."""
        request = device["request"] or "r0"
        file = self.data / "metadata" / uid / f"{request.replace('/', '.')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        told = {"driver": DRIVER, "pool": device["pool"], "name": device["device"]}
        document = {
            "apiVersion": "metadata.resource.k8s.io/v1beta1",
            "kind": "DeviceMetadata",
            "metadata": {"name": device["claim"], "uid": uid, "generation": 1},
            "requests": [{"name": request, "devices": [told]}],
        }
        file.write_text(json.dumps(document))
        path = f"{device['folder']}/{request}/{DRIVER}-metadata.json"
        return {
            "hostPath": os.fspath(file),
            "containerPath": path,
            "options": ["rw" if self.defect == "writable_metadata" else "ro", "bind"],
        }

    def _write_specs(self, uid: str, devices: list[dict[str, Any]]) -> None:
        if not devices:
            return
        mounts = {each["cdi"].partition("=")[2]: self._describe(uid, each) for each in devices}
        names = sorted(mounts)
        spec = {
            "cdiVersion": "0.5.0",
            "kind": f"{DRIVER}/claim",
            "devices": [
                {"name": name, "containerEdits": {"env": [f"DEVICE={name}"], "mounts": [mounts[name]]}}
                for name in names
            ],
        }
        try:
            (self.node.cdi / f"{DRIVER}-{uid}.json").write_text(json.dumps(spec))
        except OSError:
            if self.defect != "ignores_cdi_errors":
                raise

    def _unpreparing(self, messages: Any) -> Any:
        async def unprepare(request: Any, _: Any) -> Any:
            reply = messages.NodeUnprepareResourcesResponse()
            for claim in request.claims:
                entry = reply.claims[claim.uid]
                try:
                    if self.defect == "late_prepare":
                        await self._unprepare(claim)
                    else:
                        async with self._alone():
                            await self._unprepare(claim)
                except (Refusal, httpx2.HTTPError) as error:
                    entry.error = str(error) or type(error).__name__
            return reply

        return unprepare

    async def _unprepare(self, claim: Any) -> None:
        state = self.state
        if self.defect == "fetches_at_unprepare" and claim.uid in state:
            await self._ask("GET", f"{CLAIMS}/{claim.name}")
        if claim.uid not in state and self.defect == "unknown_is_error":
            raise Refusal("this claim was never prepared")
        if claim.uid not in state and self.defect == "second_is_error" and self.allocations:
            raise Refusal("this claim is not prepared any more")
        if self.is_jammed and claim.uid in state and self.defect != "forgets_jammed":
            if self.defect == "refuses_jammed":
                raise Refusal("the hardware does not let go")
            self.owed.add(claim.uid)
            return
        self._forget(claim.uid)

    def _forget(self, uid: str) -> None:
        state = self.state
        held = state.pop(uid, ())
        if self.defect == "ends_all_shares" and any(each["share"] for each in held):
            for path in self.node.cdi.iterdir():
                path.unlink()
        self._save(state)
        if self.defect != "leaves_metadata":
            shutil.rmtree(self.data / "metadata" / uid, ignore_errors=True)
        (self.node.cdi / f"{DRIVER}-{uid}.json").unlink(missing_ok=True)

    async def _adopt(self) -> None:
        """Prepare what is allocated, be it asked for or not."""
        with suppress(Refusal, httpx2.HTTPError):
            for item in (await self._ask("GET", CLAIMS))["items"]:
                if item.get("status", {}).get("allocation"):
                    meta = item["metadata"]
                    await self._shielded(v1.Claim(namespace="default", name=meta["name"], uid=meta["uid"]))

    async def _collect(self) -> None:
        missing: dict[str, float] = {}
        while True:
            await anyio.sleep(0.3)
            if self.defect == "adopts_claims":
                await self._adopt()
            held = {} if self.defect == "collects_nothing" else {uid: each for uid, each in self.state.items() if each}
            for uid, devices in held.items():
                try:
                    answer = await self.api.get(f"{CLAIMS}/{devices[0]['claim']}")
                    is_gone = answer.status_code == 404 or (
                        answer.status_code != 200 and self.defect == "collects_at_errors"
                    )
                except httpx2.HTTPError:
                    continue
                if not is_gone and self.defect != "collects_all":
                    missing.pop(uid, None)
                elif time.monotonic() - missing.setdefault(uid, time.monotonic()) > self.node.grace:
                    async with self._alone():
                        self._forget(uid)


def _serialized(message: Any) -> bytes:
    payload: bytes = message.SerializeToString()
    return payload


def _method(function: Any, request: Any) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(function, request.FromString, _serialized)
    return handler


def _dead(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(os.fspath(path))


class Counting(Bare):
    """It has one device only, which consumes counters."""

    @override
    async def _write(self) -> None:
        if await self._slices():
            return
        minor = int((await self._ask("GET", "/version"))["minor"])
        amount = {"card": {"memory": {"value": "80Gi"}}}
        counters: dict[str, Any] = {
            "sharedCounters": [{"name": name, "counters": each} for name, each in amount.items()]
        }
        consumed = [{"counterSet": name, "counters": each} for name, each in amount.items()]
        devices: dict[str, Any] = {"devices": [{"name": "d0", "consumesCounters": consumed}]}
        specs = [counters | devices] if minor < 35 or self.defect == "counters_together" else [counters, devices]
        for number, spec in enumerate(specs):
            item = self._slice(f"{self.node.name}-{DRIVER}-{number}", [], set(), await self._owner())
            del item["spec"]["devices"]
            pool = {**item["spec"]["pool"], "resourceSliceCount": len(specs)}
            await self._ask("POST", SLICES, {**item, "spec": {**item["spec"], "pool": pool, **spec}})


class BareSubject(DraSubject):
    """The driver with a defect; "": with none."""

    can_reboot = True
    takes_grace = True

    def __init__(self, defect: str = "") -> None:
        self._defect = defect
        self.previous = BareSubject() if defect == "new_format" else self

    @override
    def extended(self) -> str:
        return EXTENDED

    @override
    @asynccontextmanager
    async def start(self, node: DraNode, wake: Callable[[], None]) -> AsyncGenerator[Instance]:
        instance = (Counting if self._defect.startswith("counters") else Bare)(node, self._defect)
        async with anyio.create_task_group() as tasks:
            await tasks.start(instance.run, wake)
            try:
                yield instance
            finally:
                with anyio.CancelScope(shield=True):
                    await instance.stop(10)
