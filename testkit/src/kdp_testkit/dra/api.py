"""`Api`: what a simulated API server answers to a request; no sockets (that is `server`).

What is wrong now (`ApiFaults`), then admission, dropped fields, validation, and the store. Everybody may do everything.
One answer for each request; a watch is answered with where it begins.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from typing_extensions import override

from .rules import (
    Cause,
    applied,
    check_claim_status,
    check_slice,
    drop_disabled,
    drop_disabled_of_claim,
    json_patched,
    with_owner,
)
from .status import ApiRefused, Kind
from .store import KINDS, Store, StoreChange, selected

if TYPE_CHECKING:
    from .profiles import DraProfile

Object = dict[str, Any]
Admission = Callable[[str, Object], str | None]
"""Judge a write of a ResourceSlice by operation and object; return why it is denied."""

_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?"
)
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@attrs.frozen(kw_only=True)
class Request:
    """One request.

    Attributes:
        method: As ``GET``.
        path: Without the query.
        query: Its parameters.
        token: The bearer's; "": none; None: the test asks itself, and not over the network.
        body: What was sent.
        kind: The body's content type.
    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict[str, str])
    token: str | None = ""
    body: bytes = b""
    kind: str = ""

    @override
    def __str__(self) -> str:
        """Return method and path."""
        return f"{self.method} {self.path}"


@attrs.frozen(kw_only=True)
class ApiAnswer:
    """An answer: the HTTP status, and an object as JSON."""

    status: int
    body: Object


@attrs.frozen(kw_only=True)
class Watch:
    """A watch: what, from which version on, for how many seconds, and what is sent first."""

    kind: Kind
    namespace: str
    matches: Callable[[Mapping[str, Any]], bool]
    version: int
    first: tuple[Object, ...]
    seconds: float
    bookmarks: bool

    def event(self, change: StoreChange) -> tuple[str, Object] | None:
        """Return what this watch is told of a change: an object that no longer matches is DELETED for it."""
        if self.namespace and change.item["metadata"].get("namespace") != self.namespace:
            return None
        now = change.event != "DELETED" and self.matches(change.item)
        then = change.before is not None and self.matches(change.before)
        if now:
            return ("MODIFIED" if then else "ADDED"), change.item
        return ("DELETED", change.item) if then else None


class Api:
    """A server's answers.

    Args:
        profile: Which version it is.
        gates: Feature gates that are on or off, unlike that version's default.

    Attributes:
        store: Its objects.
        admission: Judges writes of slices (ValidatingAdmissionPolicy); None: nobody does.
        requests: What was asked, in order, with the status of the answer.
    """

    def __init__(self, profile: DraProfile, gates: Mapping[str, bool] | None = None) -> None:
        on = set(profile.gates)
        for gate, is_on in (gates or {}).items():
            (on.add if is_on else on.discard)(gate)
        self.profile = attrs.evolve(profile, gates=frozenset(on))
        self.store = Store()
        self.admission: Admission | None = None
        self.requests: list[tuple[str, int]] = []
        self._kinds = {(kind.group, kind.plural): kind for kind in KINDS}

    def answer(self, request: Request) -> ApiAnswer | Watch:
        """Answer a request.

        Raises:
            ApiRefused: It is refused.
        """
        status = 200
        try:
            answer = self._answer(request)
            status = answer.status if isinstance(answer, ApiAnswer) else 200
        except ApiRefused as refused:
            status = refused.status
            raise
        finally:
            self.requests.append((str(request), status))
        return answer

    def collect_garbage(self) -> None:
        """Delete the slices whose owner is a Node that is not there any more."""
        slices, nodes = self._kinds["resource.k8s.io", "resourceslices"], self._kinds["", "nodes"]
        alive = {each["metadata"]["uid"] for each in self.store.all(nodes, "", _any)}
        for item in self.store.all(slices, "", _any):
            owners = [each["uid"] for each in item["metadata"].get("ownerReferences", ()) if each["kind"] == "Node"]
            if owners and not alive.intersection(owners):
                self.store.delete(slices, "", item["metadata"]["name"])

    def _answer(self, request: Request) -> ApiAnswer | Watch:
        if request.path == "/version":
            major, minor, _ = self.profile.kubernetes.split(".")
            body = {
                "major": major,
                "minor": minor,
                "gitVersion": f"v{self.profile.kubernetes}",
                "platform": "linux/amd64",
            }
            return ApiAnswer(status=200, body=body)
        verb, kind, namespace, name, sub = self.target(request)
        if verb in ("get", "list", "watch"):
            return self._read(request, verb, kind, namespace, name)
        if verb in ("delete", "deletecollection"):
            return self._delete(request, verb, kind, namespace, name)
        if verb == "create":
            return self._create(request, kind, namespace)
        if verb == "update":
            return self._update(request, kind, namespace, name, sub)
        return self._patch(request, kind, name, sub)

    def target(self, request: Request) -> tuple[str, Kind, str, str, str]:
        """Return what a request is about: verb, kind, namespace, name and subresource.

        Raises:
            ApiRefused: There is no such thing (404), or it cannot be done (405).
        """
        match = _PATH.fullmatch(request.path)
        kind = self._kinds.get((match["group"] or "", match["plural"])) if match else None
        if match is None or kind is None:
            raise ApiRefused(404, "the server could not find the requested resource")
        name = match["name"] or ""
        return self._verb(request, name), kind, match["namespace"] or "", name, match["sub"] or ""

    @staticmethod
    def _verb(request: Request, name: str) -> str:
        verb = _VERBS.get(request.method, "")
        if request.method == "GET" and not name:
            return "watch" if request.query.get("watch") in ("true", "1", "True") else "list"
        if request.method == "DELETE" and not name:
            return "deletecollection"
        if not verb:
            raise ApiRefused(405, "the server does not allow this method on the requested resource")
        return verb

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _read(self, request: Request, verb: str, kind: Kind, namespace: str, name: str) -> ApiAnswer | Watch:
        if verb == "get":
            return ApiAnswer(status=200, body=self.store.get(kind, namespace, name))
        matches = selected(kind, request.query)
        version = request.query.get("resourceVersion", "")
        if verb == "watch":
            first = self.store.all(kind, namespace, matches) if version in ("", "0") else []
            if version and not version.isdigit():
                raise ApiRefused(400, f'resourceVersion: Invalid value: "{version}": it must be a number')
            return Watch(
                kind=kind,
                namespace=namespace,
                matches=matches,
                version=self.store.version if version in ("", "0") else int(version),
                first=tuple(first),
                seconds=float(request.query.get("timeoutSeconds", "1800")),
                bookmarks=request.query.get("allowWatchBookmarks") in ("true", "1", "True"),
            )
        limit = int(request.query.get("limit") or 0)
        after = self._after(request.query.get("continue", ""))
        # One more than asked for tells of a next page.
        items = self.store.all(kind, namespace, matches, after, limit + 1 if limit else None)
        metadata: Object = {"resourceVersion": str(self.store.version)}
        if 0 < limit < len(items):
            last = items[limit - 1]["metadata"]
            metadata["continue"] = json.dumps([self.store.version, last.get("namespace", ""), last["name"]])
            items = items[:limit]
        listed = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}
        return ApiAnswer(status=200, body=listed)

    def _after(self, token: str) -> tuple[str, str] | None:
        """Return behind which object a page begins; None: at the first.

        Raises:
            ApiRefused: The list's version is too old (410).
        """
        if not token:
            return None
        version, where, name = json.loads(token)
        if version < self.store.compacted:
            raise ApiRefused(410, "The provided continue parameter is too old to display a consistent list result.")
        return where, name

    def _patch(self, request: Request, kind: Kind, name: str, sub: str) -> ApiAnswer:
        """Change a Node by a JSON patch, or apply its labels; other objects are replaced."""
        if kind.plural != "nodes":
            raise ApiRefused(415, "the simulated API server takes patches of nodes only: replace the object")
        old = self.store.get(kind, "", name)
        given: Any = json.loads(request.body)
        manager = request.query.get("fieldManager") or "unknown"
        if request.kind == "application/json-patch+json":
            changed = json_patched(old, given, kind)
            if sub == "status":
                changed = {**old, "status": changed["status"]}
            new = with_owner(old, changed, manager)
        elif request.kind == "application/apply-patch+yaml":
            new = applied(old, given, manager, kind, force=request.query.get("force") == "true")
        else:
            raise ApiRefused(415, f"the simulated API server takes no patch of type {request.kind}")
        return ApiAnswer(status=200, body=self.store.replace(kind, "", name, new, is_dry=_is_dry(request)))

    def _create(self, request: Request, kind: Kind, namespace: str) -> ApiAnswer:
        item = self._object(request, kind)
        meta = item["metadata"]
        if not meta.get("name") and not meta.get("generateName"):
            raise kind.invalid(
                "", [("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")]
            )
        if kind.plural == "resourceclaims":
            item.pop("status", None)
        self._judge(kind, item, None)
        created = self.store.create(kind, namespace, item, is_dry=_is_dry(request))
        return ApiAnswer(status=201, body=created)

    def _update(self, request: Request, kind: Kind, namespace: str, name: str, sub: str) -> ApiAnswer:
        item = self._object(request, kind)
        old = self.store.get(kind, namespace, name)
        if sub == "status":
            item = {**old, "status": item.get("status", {}), "metadata": {**old["metadata"], **_versions(item)}}
            if kind.plural == "resourceclaims":
                self._judge_status(item, old)
        else:
            if "status" in old:
                item["status"] = old["status"]
            # A conflict counts before what is wrong with the object.
            if item["metadata"].get("resourceVersion") in (None, "", old["metadata"]["resourceVersion"]):
                self._judge(kind, item, old)
        return ApiAnswer(status=200, body=self.store.replace(kind, namespace, name, item, is_dry=_is_dry(request)))

    def _delete(self, request: Request, verb: str, kind: Kind, namespace: str, name: str) -> ApiAnswer:
        if verb == "deletecollection":
            matches = selected(kind, request.query)
            deleted = self.store.all(kind, namespace, matches)
            for item in deleted:
                self._admit("DELETE", kind, item)
                self.store.delete(kind, item["metadata"].get("namespace", ""), item["metadata"]["name"])
            return ApiAnswer(
                status=200, body={"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "items": deleted}
            )
        options = json.loads(request.body or b"{}")
        self._admit("DELETE", kind, self.store.get(kind, namespace, name))
        return ApiAnswer(status=200, body=self.store.delete(kind, namespace, name, options.get("preconditions")))

    # -- judgement -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _object(request: Request, kind: Kind) -> Object:
        try:
            item: Any = json.loads(request.body)
        except ValueError as error:
            raise ApiRefused(400, f"the object provided is not valid JSON: {error}") from None
        if not isinstance(item, dict) or cast("Object", item).get("kind") not in (None, kind.kind):
            raise ApiRefused(400, f"the object provided is unrecognized (must be of type {kind.kind})")
        found: Object = {"metadata": {}, **item}
        return found

    def _judge(self, kind: Kind, item: Object, old: Object | None) -> None:
        if kind.plural != "resourceslices":
            return
        try:
            self._judge_slice(kind, item, old)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error!r}'
            raise ApiRefused(400, text) from error

    def _judge_slice(self, kind: Kind, item: Object, old: Object | None) -> None:
        drop_disabled(item, self.profile.gates)
        for device in item.get("spec", {}).get("devices", ()):
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self._admit("CREATE" if old is None else "UPDATE", kind, item)
        causes = check_slice(item, old)
        if causes:
            raise kind.invalid(item["metadata"].get("name", ""), causes)

    def _admit(self, operation: str, kind: Kind, item: Object) -> None:
        if kind.plural != "resourceslices" or self.admission is None:
            return
        denial = self.admission(operation, item)
        if denial is not None:
            name = item["metadata"].get("name", "")
            refused = kind.forbidden(
                name, f"ValidatingAdmissionPolicy 'slices' with binding 'slices' denied request: {denial}"
            )
            raise ApiRefused(422, refused.message, details=refused.details)

    def _judge_status(self, item: Object, old: Object) -> None:
        if item["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return  # a conflict counts first
        kind = self._kinds["resource.k8s.io", "resourceclaims"]
        drop_disabled_of_claim(item, self.profile.gates)
        for device in item["status"].get("devices", ()):
            device.setdefault("conditions", None)
        causes = self.causes_of_status(item, old)
        if causes:
            raise kind.invalid(old["metadata"]["name"], causes)

    def causes_of_status(self, item: Object, old: Object) -> list[Cause]:
        """Return what is wrong with a claim's new status. A server with permissions overrides it, and needs ``old``."""
        return check_claim_status(item)


def _is_dry(request: Request) -> bool:
    return request.query.get("dryRun") == "All"


def _any(_: Mapping[str, Any]) -> bool:
    return True


def _versions(item: Mapping[str, Any]) -> Object:
    """Return what says of an object which one is meant."""
    meta = item["metadata"]
    return {name: meta[name] for name in ("uid", "resourceVersion") if meta.get(name)}
