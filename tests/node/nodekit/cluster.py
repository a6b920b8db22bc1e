"""`Cluster`: Kubernetes with one node: etcd, API server, controllers, scheduler, kubelet, containerd, CNI.

All of it runs in namespaces of its own, network included. The node is ``node0`` at 10.0.0.2, pods get addresses of
10.0.1.0/24, and the API server answers at 10.0.0.1, the address of the service ``kubernetes``, so that clients in pods
work without a kube-proxy. The test reaches the API server through a unix socket (`Cluster.api`) or by ``kubectl``.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import yaml
from typing_extensions import override

from .kubelet import is_listening
from .machine import KUBELET, Containerd, Machine
from .tools import BIN, Missing, program, tool

__all__ = ["NODE", "ApiError", "Cluster", "Object", "is_ready"]

Object = dict[str, Any]
"""An object of the API, as JSON has it."""

NODE: Final = "node0"
POD_SECONDS: Final = 150.0
"""Deadline of what a pod does.

If the API server's authorizer learns of the pod later than the kubelet, the kubelet may not read the pod's claim yet.
It asks again at its next sync, 60 to 90 s later.
"""

_API: Final = "10.0.0.1"
_ADDRESS: Final = "10.0.0.2"
_ETCD: Final = "http://127.0.0.1:2379"
_USERS: Final = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
}
_PARTS: Final = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd")


class ApiError(Exception):
    """The API server refused.

    Attributes:
        code: The HTTP status.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Cluster(Machine):
    """A cluster with one node, or its API server alone.

    An async context manager (asyncio only): on entry the node is Ready; on exit everything of it is gone.

    Args:
        containerd: Which of the unpacked container runtimes.
        feature_gates: Of every component.
        flags: More arguments by component, as
            ``{"kube-apiserver": ["--runtime-config=resource.k8s.io/v1beta2=true"]}``.
        kubelet_settings: More lines of the kubelet's configuration, as YAML.
        has_node: False: there is an object of the node, and nothing runs but etcd and the API server.
    """

    def __init__(
        self,
        containerd: Containerd = "containerd-2",
        *,
        feature_gates: Mapping[str, bool] | None = None,
        flags: Mapping[str, Sequence[str]] | None = None,
        kubelet_settings: str = "",
        has_node: bool = True,
    ) -> None:
        self._tools = {name: tool(name) for name in _PARTS}
        if shutil.which("ip") is None:
            raise Missing("ip is missing: install iproute2")
        plugins = program("ptp", BIN / "cni/usr/lib/cni").parent
        super().__init__(containerd, network_plugins=plugins)
        self._gates = dict(feature_gates or {})
        self._flags = dict(flags or {})
        self._kubelet_settings = kubelet_settings
        self._has_node = has_node
        self._pki = self.work / "pki"

    @override
    def environment(self) -> dict[str, str]:
        settings = {"KUBECONFIG": str(self.work / "admin.kubeconfig"), "KUBECACHEDIR": str(self.work / "cache")}
        return super().environment() | settings

    @override
    async def start_containerd(self) -> None:
        if self._has_node:
            await super().start_containerd()

    # -- the parts -----------------------------------------------------------------------------------------------------

    @override
    async def boot(self) -> None:
        await self._connect()
        self._identify()
        await self._start_api_server()
        if not self._has_node:
            await self.api("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
            await self.until(partial(self.get, "v1/namespaces", "default"), "there is a namespace")
            return
        for name, user in (("kube-controller-manager", "controllers"), ("kube-scheduler", "scheduler")):
            more: tuple[str, ...] = ()
            if user == "controllers":
                more = (f"--service-account-private-key-file={self._key}", f"--root-ca-file={self._certificate}")
            await self._spawn(
                name,
                f"--kubeconfig={self._kubeconfig(user)}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--cert-dir={self._pki}/{user}",
                *more,
            )
        await self.start()
        await self.until(self._is_usable, "the node is Ready and pods can be made")

    async def _connect(self) -> None:
        """Give the namespace its addresses: the service's on lo, the node's on one end of a cable."""
        for command in (
            "link set lo up",
            f"address add {_API}/32 dev lo",
            "link add eth0 type veth peer name cable",
            f"address add {_ADDRESS}/24 dev eth0",
            "link set cable up",
            "link set eth0 up",
            f"route add default via {_ADDRESS} dev eth0",
        ):
            await self.run("ip", *command.split())
        pods = {
            "type": "ptp",
            "ipam": {"type": "host-local", "subnet": "10.0.1.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
        }
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [pods]}
        (self.work / "cni/10-pods.conflist").write_text(json.dumps(network))

    @property
    def _key(self) -> Path:
        return self._pki / "accounts.key"

    @property
    def _certificate(self) -> Path:
        return self._pki / "apiserver.crt"

    def _kubeconfig(self, user: str) -> Path:
        return self.work / f"{user}.kubeconfig"

    def _identify(self) -> None:
        """Write the credentials: a token for each user, and the key that signs the tokens of service accounts."""
        self._pki.mkdir()
        self._key.write_text(_private_key())
        tokens = {user: secrets.token_hex() for user in _USERS}
        (self._pki / "tokens.csv").write_text(
            "".join(f'{tokens[user]},{name},{user},"{group}"\n' for user, (name, group) in _USERS.items())
        )
        for user, token in tokens.items():
            cluster = {"server": f"https://{_API}:443", "certificate-authority": str(self._certificate)}
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "cluster", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": user}}],
                "current-context": "context",
            }
            self._kubeconfig(user).write_text(json.dumps(config))

    async def _spawn(self, name: str, *flags: str) -> None:
        gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in self._gates.items())
        if gates and name != "etcd":
            flags = (*flags, f"--feature-gates={gates}")
        await self.spawn(name, self._tools[name], *flags, *self._flags.get(name, ()))

    async def _start_api_server(self) -> None:
        await self._spawn(
            "etcd",
            f"--data-dir={self.work}/etcd",
            "--unsafe-no-fsync",
            "--log-level=error",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        )
        await self._spawn_api_server()
        await self.until(self._certificate.exists, "the API server has its certificate")
        await self.spawn("kubectl-proxy", self._tools["kubectl"], "proxy", f"--unix-socket={self._socket}")
        await self.until(partial(self._answers, "/readyz"), "the API server is ready", every=0.05)

    async def kill_api_server(self) -> None:
        """Kill the API server by SIGKILL; what it stored stays in etcd."""
        await self.kill("kube-apiserver")

    async def restart_api_server(self) -> None:
        """Start the API server again after `kill_api_server`; returns when it is ready."""
        await self._spawn_api_server()
        await self.until(partial(self._answers, "/readyz"), "the API server is ready", every=0.05)

    async def _spawn_api_server(self) -> None:
        await self._spawn(
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            "--bind-address=0.0.0.0",
            "--secure-port=443",
            f"--advertise-address={_ADDRESS}",
            f"--cert-dir={self._pki}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._key}",
            f"--service-account-signing-key-file={self._key}",
            f"--token-auth-file={self._pki}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--kubelet-preferred-address-types=InternalIP",
            "--profiling=false",
        )

    async def _answers(self, path: str) -> bool:
        try:
            await self._request("GET", path)
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True

    async def _is_usable(self) -> bool:
        """Whether the node is Ready, and a namespace has what the admission of a pod asks for."""
        node = await self.get("v1/nodes", NODE)
        return (
            node is not None
            and is_ready(node)
            and all(
                [
                    await self.get("v1/serviceaccounts", "default", namespace="default"),
                    await self.get("v1/configmaps", "kube-root-ca.crt", namespace="default"),
                ]
            )
        )

    # -- the kubelet ---------------------------------------------------------------------------------------------------

    @override
    async def start(self) -> None:
        config = self.work / "kubelet.yaml"
        config.write_text(f"""{KUBELET}
containerRuntimeEndpoint: unix://{self.runtime_socket}
nodeStatusUpdateFrequency: 1s
cgroupRoot: /{self.work.name}
featureGates: {json.dumps(self._gates)}
{self._kubelet_settings}
""")
        await self.spawn(
            "kubelet",
            self._tools["kubelet"],
            f"--config={config}",
            f"--kubeconfig={self._kubeconfig('kubelet')}",
            f"--node-ip={_ADDRESS}",
            f"--hostname-override={NODE}",
            f"--cert-dir={self._pki}/kubelet",
            "--v=2",
            *self._flags.get("kubelet", ()),
        )
        await self.until(lambda: is_listening(self.paths.kubelet_socket), "the kubelet listens")

    # -- the API -------------------------------------------------------------------------------------------------------

    @property
    def _socket(self) -> Path:
        return self.work / "run/api.sock"

    async def _request(self, method: str, path: str, body: object = None, accept: str = "*/*") -> bytes:
        def ask() -> tuple[int, bytes]:
            connection = _Connection(str(self._socket))
            try:
                data = None if body is None else json.dumps(body)
                connection.request(method, path, data, {"Content-Type": "application/json", "Accept": accept})
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

        status, data = await anyio.to_thread.run_sync(ask)
        if status >= 400:
            raise ApiError(status, data.decode(errors="replace"))
        return data

    async def api(self, method: str, path: str, body: object = None) -> Object:
        """Ask the API server as the cluster's admin, in a few milliseconds.

        Args:
            method: As ``GET``.
            path: As ``/api/v1/nodes``, with a query.
            body: What is sent as JSON.

        Raises:
            ApiError: It refused.
        """
        answer: Object = json.loads(await self._request(method, path, body))
        return answer

    async def names(self, resource: str, *, fields: str = "") -> list[str]:
        """Return the names of a resource's objects, or of those with fields as in ``spec.driver=x``: a short answer."""
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        path = f"{_path(resource, None)}?fieldSelector={fields}"
        return [
            each["metadata"]["name"]
            for each in json.loads(await self._request("GET", path, accept=accept))["items"] or ()
        ]

    async def metrics(self) -> str:
        """Return the API server's own figures, in the text format of Prometheus."""
        return (await self._request("GET", "/metrics")).decode()

    async def get(self, resource: str, name: str, *, namespace: str | None = None) -> Object | None:
        """Return an object; None: there is none.

        Args:
            resource: Version and plural, as ``v1/pods``, ``apps/v1/daemonsets`` or
                ``resource.k8s.io/v1/resourceclaims``.
            name: The object's name.
            namespace: Where; None: it is the cluster's.
        """
        try:
            return await self.api("GET", f"{_path(resource, namespace)}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, resource: str, *, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Return all objects of a resource, those whose labels are as in ``app=plugin``."""
        found = await self.api("GET", f"{_path(resource, namespace)}?labelSelector={selector}")
        items: list[Object] = found["items"]
        return items

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the cluster's admin and return what it prints.

        Raises:
            RuntimeError: It failed; the text has what it printed.
        """
        return await self.run(self._tools["kubectl"], *arguments, stdin=stdin)

    async def apply(self, *manifests: str | Mapping[str, Any], namespace: str = "default") -> None:
        """Have these objects: texts of YAML with one or several documents, or objects."""
        # Of JSON documents between lines of dashes kubectl 1.37 has lost the last one, without a word.
        texts = (each if isinstance(each, str) else yaml.safe_dump(each) for each in manifests)
        await self.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin="\n---\n".join(texts))

    async def delete(self, resource: str, name: str, *, namespace: str | None = None) -> None:
        """Delete an object and wait until it is gone."""
        await self.api("DELETE", f"{_path(resource, namespace)}/{name}")

        async def is_gone() -> bool:
            return await self.get(resource, name, namespace=namespace) is None

        await self.until(is_gone, f"{resource} {name} is gone", every=0.05)

    async def clear_pods(self, namespace: str, *, selector: str = "") -> None:
        """Delete the pods of a namespace, those whose labels are as in ``app=plugin``, and wait until they are gone."""
        await self.api("DELETE", f"{_path('v1/pods', namespace)}?labelSelector={selector}")

        async def is_clear() -> bool:
            return not await self.list("v1/pods", namespace=namespace, selector=selector)

        await self.until(is_clear, f"the pods of namespace {namespace} are gone", every=0.05)

    async def clear_published(self) -> None:
        """Delete all ResourceSlices and DeviceClasses."""
        for plural in ("resourceslices", "deviceclasses"):
            await self.api("DELETE", f"/apis/resource.k8s.io/v1/{plural}")

    @asynccontextmanager
    async def namespace(self) -> AsyncIterator[str]:
        """Make a namespace for a test; at the end its pods are gone from the node, their devices with them."""
        name = f"test-{secrets.token_hex(4)}"
        await self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            account = partial(self.get, "v1/serviceaccounts", "default", namespace=name)
            await self.until(account, f"namespace {name} has its service account")
            yield name
        finally:
            with anyio.CancelScope(shield=True):
                # Not left to the namespace's own controller, which takes its time.
                await self.api("DELETE", _path("apps/v1/daemonsets", name))
                await self.clear_pods(name)
                await self.api("DELETE", f"/api/v1/namespaces/{name}")

    # -- objects that tests wait for -----------------------------------------------------------------------------------

    async def until_object(
        self,
        resource: str,
        name: str,
        condition: Callable[[Object], object],
        what: str,
        *,
        namespace: str | None = None,
        seconds: float = 60.0,
    ) -> Object:
        """Wait until an object is there and as wanted, and return it.

        Raises:
            NotReached: It did not come about; the text has the object's last status, and the logs.
        """
        seen: Object | None = None

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.get(resource, name, namespace=namespace)
            return seen is not None and bool(condition(seen))

        async def last() -> str:
            others = [
                f"{each['metadata'].get('namespace')}/{each['metadata']['name']}" for each in await self.list(resource)
            ]
            status = f"there is none, but {others}" if seen is None else f"its status is {json.dumps(seen['status'])}"
            return f"{resource} {name} {what}; {status}\n{await self._events(namespace)}"

        await self.until(is_so, last, seconds=seconds, every=0.05)
        assert seen is not None
        return seen

    async def _events(self, namespace: str | None) -> str:
        """Return what the events of a namespace say."""
        events = await self.list("v1/events", namespace=namespace)
        return "\n".join(f"{e['involvedObject']['name']}: {e['reason']}: {e.get('message')}" for e in events)

    async def until_pod(
        self, name: str, phase: str, *, namespace: str = "default", seconds: float = POD_SECONDS
    ) -> Object:
        """Wait until a pod is in this phase (``Running``: and all its containers are ready), and return it."""

        def is_so(pod: Object) -> bool:
            return bool(pod["status"].get("phase") == phase) and (phase != "Running" or is_ready(pod))

        return await self.until_object("v1/pods", name, is_so, f"is {phase}", namespace=namespace, seconds=seconds)

    async def until_rolled_out(self, name: str, *, namespace: str = "default", seconds: float = 120.0) -> Object:
        """Wait until the pods of a DaemonSet are of its newest template and ready, and no old one is left."""

        def is_so(daemon_set: Object) -> bool:
            status = daemon_set["status"]
            counts = ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")
            is_seen: bool = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
            return is_seen and all(status.get(count) == 1 for count in counts)

        return await self.until_object(
            "apps/v1/daemonsets", name, is_so, "is rolled out", namespace=namespace, seconds=seconds
        )

    async def until_counted(self, resource: str, *, capacity: int, allocatable: int, seconds: float = 60.0) -> Object:
        """Wait until the node shows so many devices of a resource (0: none, or no such resource); return the node."""
        wanted = {"capacity": capacity, "allocatable": allocatable}

        def is_so(node: Object) -> bool:
            return all(int(node["status"][which].get(resource, 0)) == count for which, count in wanted.items())

        return await self.until_object("v1/nodes", NODE, is_so, f"shows {wanted} of {resource}", seconds=seconds)

    async def logs(self, pod: str, *arguments: str, namespace: str = "default") -> str:
        """Return what a pod's container printed."""
        return await self.kubectl("logs", f"--namespace={namespace}", pod, *arguments)

    async def until_said(
        self, pod: str, text: str, *, times: int = 1, namespace: str = "default", seconds: float = POD_SECONDS
    ) -> str:
        """Wait until the pod's containers have printed this, in this or an earlier run, and return all they printed."""

        def said() -> str:
            files = sorted((self.work / "log/pods").glob(f"{namespace}_{pod}_*/*/*.log"))
            lines = (line for file in files for line in file.read_text(errors="replace").splitlines())
            return "\n".join(line.split(" ", 3)[-1] for line in lines)

        async def awaited() -> str:
            return f"pod {pod} says {text!r}; it said:\n{said()}\n{await self._events(namespace)}\n"

        await self.until(lambda: said().count(text) >= times, awaited, seconds=seconds)
        return said()

    async def exec(self, pod: str, *command: str, namespace: str = "default") -> str:
        """Run a command in a pod's container and return what it prints."""
        return await self.kubectl("exec", f"--namespace={namespace}", pod, "--", *command)

    async def kill_container(self, pod: Object, *, signal: str = "SIGKILL") -> None:
        """Send a signal to the process of a pod's first container."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        await self.ctr("tasks", "kill", f"--signal={signal}", container)


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _path(resource: str, namespace: str | None) -> str:
    """Return the path of ``v1/pods`` or ``apps/v1/daemonsets``."""
    version, plural = resource.rsplit("/", 1)
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


def is_ready(item: Object) -> bool:
    """Whether a pod or a node is Ready."""
    conditions = item["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _private_key() -> str:
    """Return a new private key of the curve P-256 as PEM (RFC 5915; the public key may be left out)."""
    scalar = secrets.randbits(255).to_bytes(32, "big")  # smaller than the curve's order
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    der = bytes.fromhex("020101") + b"\x04\x20" + scalar + curve
    der = b"\x30" + bytes([len(der)]) + der
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.encodebytes(der).decode()}-----END EC PRIVATE KEY-----\n"
