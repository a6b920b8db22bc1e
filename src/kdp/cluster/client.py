"""`KubeApi`: the `ClusterApi` of a real API server. It comes with the extra ``kube``.

lightkube says where the server is and who we are: the account of the pod, or a kubeconfig file with its certificates,
tokens and programs. The requests are plain JSON over httpx2, the HTTP client of lightkube, because lightkube's own
requests

* drop the fields that its models do not know, so that an update would take them from others, and what the server left
  out could not be told from what the model left out;
* have no preconditions for a deletion, no bookmarks, and no end of patience with a watch whose connection is half open;
* divide a watch's lines at characters that may stand within a text, as U+0085.

Nothing here retries, with one exception: a request that the server refuses with 401 is sent once more with the token
read anew, because the kubelet replaces the token of a pod about hourly.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast, final

import anyio
from typing_extensions import override

from ..concurrency.counts import Tally
from ..errors import ConfigurationError
from .answers import check_deleted, cut, event_of, field_of, object_of, refused
from .api import ApiError, OddAnswerError, Slices, WatchEvent
from .certificates import Certificates

try:
    import httpx2
    from lightkube.config.client_adapter import user_auth, verify_cluster
    from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig
    from lightkube.config.models import User
    from lightkube.core.exceptions import ConfigError
except ImportError as missing:
    raise ConfigurationError(
        f"speaking to the API server needs {missing.name}, which comes with the extra 'kube': pip install "
        "'kdp-sdk[kube]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from lightkube.config.kubeconfig import SingleConfig

DEADLINE: Final = 9.0
"""Seconds for a request; a kubelet waits for a claim much longer, but tries again only after a while."""

LIST_DEADLINE: Final = 30.0
"""Seconds for a list, which may be long."""

SILENCE: Final = 90.0
"""Seconds of silence after which a watch counts as lost; the server sends a bookmark each minute."""

PAGE: Final = 250
"""Objects of a page; a node has some 15 KB as JSON, a pod 10."""

MOST_OF_TEXT: Final = 256 << 10
"""Bytes of a text, which a pod wrote and the API server hands on: of the end of a log, or of a pod's answer."""

_KEEPALIVE = [  # the kernel notices in 25 s that the other side is gone
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
_WATCH = "watch resourceslices"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_Object = dict[str, Any]


@final
class KubeApi:
    """A connection to the API server; an async context manager (asyncio only).

    Args:
        kubeconfig: A kubeconfig file; None: the account of the pod if there is one, else the file that ``KUBECONFIG``
            names, else ``~/.kube/config``.
        account: The directory of the pod's account.
        deadline: Seconds for a request.
        silence: Seconds of silence after which a watch is lost.

    Attributes:
        server: Its address.

    Raises:
        ConfigurationError: There is no configuration, or it cannot be used.
    """

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str] | None = None,
        *,
        account: str | os.PathLike[str] = SERVICE_ACCOUNT,
        deadline: float = DEADLINE,
        silence: float = SILENCE,
    ) -> None:
        self._deadline = deadline
        self._silence = silence
        try:
            config = _configuration(kubeconfig, Path(account))
            user = config.user or User()
            if user.token_file is not None:
                user.token_file = os.fspath(config.abs_file(user.token_file))
            context = verify_cluster(config.cluster, user, config.abs_file)
            auth = user_auth(user)
        except ConfigurationError:
            raise
        except Exception as error:  # of the file's syntax, its types, its files, its certificates
            where = os.fspath(kubeconfig) if kubeconfig else "the pod's account or kubeconfig"
            raise ConfigurationError(f"the API server cannot be used as {where} says: {_words(error)}") from error
        self.server = config.cluster.server.rstrip("/")
        authority = config.cluster.certificate_auth
        self._files = Certificates(
            context,
            None if authority is None else Path(config.abs_file(authority)),
            (Path(config.abs_file(user.client_cert)), Path(config.abs_file(user.client_key)))
            if user.client_cert and user.client_key and not user.client_cert_data
            else None,
        )
        self._requests = Tally()
        self._client = httpx2.AsyncClient(
            base_url=self.server,
            auth=auth,
            headers={"Accept": "application/json", "User-Agent": "kdp"},
            timeout=httpx2.Timeout(deadline),
            transport=_CountedTransport(
                self._requests,
                verify=context,
                limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=30.0),
                socket_options=_KEEPALIVE,
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def requests(self) -> Mapping[tuple[str, ...], int]:
        """How many requests were made, by HTTP status, host, and HTTP method; ``<error>``: without an answer."""
        return self._requests.counts

    # -- what a driver asks --------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return the server's version; see `ClusterApi`, also for the others."""
        found = await self._request("GET", "/version", "get version")
        return str(field_of(found, "gitVersion", str, "get version"))

    async def node(self, name: str) -> _Object:
        """Return a Node."""
        return await self._request("GET", f"/api/v1/nodes/{name}", f"get nodes {name}", kind="Node")

    async def claim(self, namespace: str, name: str) -> _Object:
        """Return a ResourceClaim."""
        what = f"get resourceclaims {namespace}/{name}"
        return await self._request("GET", _claim_path(namespace, name), what, kind="ResourceClaim")

    async def update_claim_status(self, claim: Mapping[str, Any]) -> _Object:
        """Replace a claim's status."""
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        path = f"{_claim_path(namespace, name)}/status"
        return await self._request("PUT", path, f"update resourceclaims/status {namespace}/{name}", body=claim)

    async def objects(self, resource: str) -> tuple[_Object, ...]:
        """Return all objects of a resource of ``resource.k8s.io/v1``, of all namespaces."""
        what = f"list {resource}"
        path = f"/apis/resource.k8s.io/v1/{resource}"
        found = await self._request("GET", path, what, deadline=LIST_DEADLINE)
        items: list[Any] = field_of({"items": found.get("items") or []}, "items", list, what)
        return tuple(cast("_Object", each) for each in items if isinstance(each, dict))

    async def slices(self, *, driver: str, node: str | None = None) -> Slices:
        """Return a driver's slices."""
        selected = _selected(driver, node)
        what = "list resourceslices"
        found = await self._request("GET", _SLICES, what, params=selected, deadline=LIST_DEADLINE)
        metadata = field_of(found, "metadata", dict, what)
        items = field_of({"items": found.get("items") or []}, "items", list, what)
        return Slices(tuple(items), field_of(metadata, "resourceVersion", str, what))

    async def create_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> _Object:
        """Create a slice."""
        what = f"create resourceslices {item['metadata']['name']}"
        return await self._request(
            "POST", _SLICES, what, params=_trial(dry_run=dry_run), body=item, kind="ResourceSlice"
        )

    async def update_slice(self, item: Mapping[str, Any], *, dry_run: bool = False) -> _Object:
        """Replace a slice."""
        name = item["metadata"]["name"]
        path, what = f"{_SLICES}/{name}", f"update resourceslices {name}"
        return await self._request("PUT", path, what, params=_trial(dry_run=dry_run), body=item, kind="ResourceSlice")

    async def delete_slice(self, item: Mapping[str, Any]) -> None:
        """Delete a slice if it is still just this one."""
        metadata = item["metadata"]
        conditions = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        name = metadata["name"]
        what = f"delete resourceslices {name}"
        check_deleted(await self._request("DELETE", f"{_SLICES}/{name}", what, body=body), name, what)

    async def create_event(self, event: Mapping[str, Any]) -> _Object:
        """Create an Event."""
        version = event.get("apiVersion", "v1")
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{base}/namespaces/{event['metadata']['namespace']}/events"
        return await self._request("POST", path, "create events", body=event, kind="Event")

    # -- what a device plugin asks, beside the node and Events; see `NodeApi` ------------------------------------------

    async def patch_node(self, name: str, patch: Sequence[Mapping[str, Any]]) -> _Object:
        """Change a Node by a JSON patch."""
        return await self._request(
            "PATCH", f"/api/v1/nodes/{name}", f"patch nodes {name}", body=patch, media=_JSON_PATCH
        )

    async def pod(self, namespace: str, name: str) -> _Object:
        """Return a Pod."""
        return await self._request("GET", _pod_path(namespace, name), f"get pods {namespace}/{name}", kind="Pod")

    async def evict(self, namespace: str, name: str, *, uid: str, is_dry: bool) -> _Object:
        """Ask the Eviction API for a pod."""
        options = {"preconditions": {"uid": uid}, **({"dryRun": ["All"]} if is_dry else {})}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": options,
        }
        path = f"{_pod_path(namespace, name)}/eviction"
        return await self._request("POST", path, f"create pods/eviction {namespace}/{name}", body=body)

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> _Object:
        """Change an Event."""
        path = f"/api/v1/namespaces/{namespace}/events/{name}"
        return await self._request("PATCH", path, "patch events", body=patch, media=_MERGE_PATCH)

    # -- watching ------------------------------------------------------------------------------------------------------

    async def watch_slices(
        self, *, driver: str, node: str | None = None, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield what changes from a version on."""
        self._files.look()
        params = _selected(driver, node) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(random.randint(240, 480)),  # noqa: S311 - nodes should not all come back at once
        }
        patience = httpx2.Timeout(self._deadline, read=self._silence)
        request = self._client.build_request("GET", _SLICES, params=params, timeout=patience)
        try:
            with anyio.fail_after(self._deadline):
                response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, TimeoutError, OSError, ConfigError) as error:
            raise self._unreached(error, _WATCH, self._deadline) from error
        try:
            if response.is_error:
                raise _refusal(response, await response.aread(), _WATCH)
            rest = b""
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield event_of(line, _WATCH)
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise self._unreached(error, _WATCH, self._silence) from error
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    # -- what an administrator's commands ask --------------------------------------------------------------------------

    async def pages(
        self, path: str, what: str, selector: str = "", labels: str = ""
    ) -> AsyncGenerator[list[_Object], None]:
        """Yield a list's objects page by page; 410 if it took so long that the server no longer knows its version.

        Args:
            path: Of the collection.
            what: What texts call it: ``list nodes``.
            selector: A field selector.
            labels: A label selector.
        """
        given = {"fieldSelector": selector, "labelSelector": labels}
        params = {"limit": str(PAGE), **{name: text for name, text in given.items() if text}}
        while True:
            found = await self._request("GET", path, what, params=params, deadline=LIST_DEADLINE)
            yield field_of({"items": found.get("items") or []}, "items", list, what)
            metadata = field_of(found, "metadata", dict, what)
            if not metadata.get("continue"):
                return
            token: str = field_of(metadata, "continue", str, what)
            if token == params.get("continue"):
                raise OddAnswerError(what, "the answer names itself as the next page")
            params["continue"] = token

    async def text(self, path: str, what: str, params: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Return status and text of a log, or of what a pod answers, be it an error, through the server's proxy."""
        response, content = await self._exchange("GET", path, what, params, None, "", None, MOST_OF_TEXT)
        text = content.decode(errors="replace")
        if response.is_error and (response.status_code in (401, 403) or '"Status"' in text):  # the server's own
            raise _refusal(response, content, what)
        return response.status_code, text

    async def apply_node(
        self, item: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> _Object:
        """Apply fields of a Node for a manager (server-side apply); 409 if another one owns a field that differs."""
        name = item["metadata"]["name"]
        return await self._request(
            "PATCH",
            f"/api/v1/nodes/{name}",
            f"patch nodes {name}",
            params={"fieldManager": manager, "force": str(force).lower(), **_trial(dry_run=dry_run)},
            body=item,
            media=_APPLY,
        )

    async def patch_node_status(
        self, name: str, patch: Sequence[Mapping[str, Any]], *, manager: str, dry_run: bool = False
    ) -> _Object:
        """Change a Node's status by a JSON patch; 422 if a ``test`` in it fails."""
        return await self._request(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            f"patch nodes/status {name}",
            params={"fieldManager": manager, **_trial(dry_run=dry_run)},
            body=patch,
            media=_JSON_PATCH,
        )

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        media: str = "application/json",
        deadline: float | None = None,
        kind: str | None = None,
    ) -> _Object:
        """Send a request; ``what`` names it in errors by its verb, its resource, and the object if there is one.

        The answer must be of the ``kind``, if one is given.
        """
        response, answer = await self._exchange(method, path, what, params, body, media, deadline, math.inf)
        if response.is_error:
            raise _refusal(response, answer, what)
        return object_of(answer, what, kind)

    async def _exchange(
        self, method: str, path: str, what: str, params: Any, body: Any, media: str, deadline: float | None, most: float
    ) -> tuple[httpx2.Response, bytes]:
        self._files.look()
        seconds = deadline or self._deadline
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": media} if body is not None else {}
        patience = httpx2.Timeout(seconds)
        try:
            with anyio.fail_after(seconds):
                async with self._client.stream(
                    method, path, params=params, content=content, headers=headers, timeout=patience
                ) as response:
                    return response, await _content(response, most, what)
        except (httpx2.HTTPError, TimeoutError, OSError, ValueError, ConfigError) as error:
            raise self._unreached(error, what, seconds) from error

    def _unreached(self, error: BaseException, what: str, seconds: float) -> ApiError:
        """Return the error for a request that has no usable answer."""
        tls = _cause(error, ssl.SSLError)
        if tls is not None:
            self._files.doubt()
            return ApiError(
                f"{what}: {self.server} is not trusted: {_words(tls)}; check the certificate authority",
                reason="TLS",
            )
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            problem = f"it sent nothing for {seconds:g} s"
        elif isinstance(error, ConfigError):
            return ApiError(f"{what}: {_words(error)}")
        elif isinstance(error, ValueError):  # of a URL or a header that cannot be sent
            return ApiError(f"{what}: cannot be asked: {_words(error)}")
        else:
            problem = _words(_cause(error, OSError) or error)
        return ApiError(f"{what}: the API server {self.server} was not reached: {problem}")


@final
class _CountedTransport(httpx2.AsyncHTTPTransport):
    """Counts requests with the labels of client-go's ``rest_client_requests_total``."""

    def __init__(self, requests: Tally, **options: Any) -> None:
        super().__init__(**options)
        self._requests = requests

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        code = "<error>"
        connected: list[Any] = []

        async def trace(event: str, details: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                connected.append(details["return_value"])

        request.extensions["trace"] = trace
        try:
            response = await super().handle_async_request(request)
            code = str(response.status_code)
            return response
        except asyncio.CancelledError:
            for stream in connected:  # httpx2 leaves a connection open if its TLS handshake is cancelled
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
            raise
        finally:
            self._requests.add(code, request.url.netloc.decode(), request.method)


def _configuration(kubeconfig: str | os.PathLike[str] | None, account: Path) -> SingleConfig:
    if kubeconfig is None and (account / "token").exists():
        missing = [name for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT") if name not in os.environ]
        if missing:
            raise ConfigError(f"{account} is there, but the variable {missing[0]} is not set")
        found = KubeConfig.from_service_account(account).get()
    else:
        file = kubeconfig or os.environ.get("KUBECONFIG")
        if not file and not os.path.exists(os.path.expanduser(DEFAULT_KUBECONFIG)):
            raise ConfigurationError(
                f"no API server is known: this process has no account of a pod, and there is no {DEFAULT_KUBECONFIG}; "
                "give --kubeconfig FILE (kdp simulate TARGET needs no cluster)"
            )
        found = KubeConfig.from_file(file or DEFAULT_KUBECONFIG).get()
    assert found is not None  # only with a default it is
    return found


def _selected(driver: str, node: str | None) -> dict[str, str]:
    selector = f"spec.driver={driver}" + (f",spec.nodeName={node}" if node is not None else "")
    return {"fieldSelector": selector}


def _trial(*, dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _claim_path(namespace: str, name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _refusal(response: httpx2.Response, content: bytes, what: str) -> ApiError:
    wait = response.headers.get("Retry-After")
    return refused(response.status_code, response.reason_phrase, content, what, retry_after=wait)


async def _content(response: httpx2.Response, most: float, what: str) -> bytes:
    """Return an answer's content, if it has no more than so many bytes."""
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) > most:
            raise OddAnswerError(what, f"it has more than {MOST_OF_TEXT >> 10} KiB")
    return bytes(found)


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Return the innermost cause of this kind."""
    found: BaseException | None = None
    at: BaseException | None = error
    while at is not None:
        found = at if isinstance(at, kind) else found
        at = at.__cause__ or at.__context__
    return found


def _words(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return cut(str(error)) or type(error).__name__
