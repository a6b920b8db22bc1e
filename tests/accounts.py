"""An API server that asks who asks, and whether he may: tokens, rules, and the permissions of a claim's status.

The simulated API server lets everybody do everything. Source: ``k8s.io/kubernetes`` ``pkg/registry/resource``
(``utils.go``) of 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from typing_extensions import override

from kdp_testkit.dra.api import Api, ApiAnswer, Object, Request, Watch
from kdp_testkit.dra.rules import Cause, device_key
from kdp_testkit.dra.server import SimulatedApiServer
from kdp_testkit.dra.status import ApiRefused, Kind

Allowed = Callable[[str, str, str, str], str | None]
"""Whether the account may: verb, resource with subresource, namespace, name; returns why not, or None."""


@attrs.frozen(kw_only=True)
class Account:
    """Who asks.

    Attributes:
        name: As ``system:serviceaccount:kube-system:driver``.
        node: The node that its token is bound to; "": to none.
        rules: What it may: verbs, resource with subresource, and names ("" for all) of each rule; None: everything.
    """

    name: str
    node: str = ""
    rules: tuple[tuple[frozenset[str], str, str], ...] | None = None

    @classmethod
    def allowed(cls, name: str, rules: Mapping[str, str], *, node: str = "") -> Account:
        """Return an account with its verbs by resource, with ``/NAME`` after a colon for a single name."""
        return cls(
            name=name,
            node=node,
            rules=tuple(
                (frozenset(verbs.split(",")), resource.partition(":")[0], resource.partition(":")[2])
                for resource, verbs in rules.items()
            ),
        )

    def may(self, verb: str, resource: str, name: str) -> bool:
        """Whether it may."""
        if self.rules is None:
            return True
        return any(verb in verbs and resource == of and only in ("", name) for verbs, of, only in self.rules)


def with_accounts(server: SimulatedApiServer) -> dict[str, Account]:
    """Let a server ask who asks, and return its accounts by token; as long as there are none, nobody is asked."""
    api = server.api = _Api(server.api)
    return api.accounts


class _Api(Api):
    def __init__(self, api: Api) -> None:
        super().__init__(api.profile)
        self.store, self.requests = api.store, api.requests
        self.accounts: dict[str, Account] = {}
        self._asking = Account(name="admin")

    @override
    def _answer(self, request: Request) -> ApiAnswer | Watch:
        self._asking = Account(name="admin")
        if self.accounts and request.token is not None:
            if request.token not in self.accounts:
                raise ApiRefused(401, "Unauthorized")
            self._asking = self.accounts[request.token]
        if request.path != "/version":
            verb, kind, namespace, name, sub = self.target(request)
            resource = f"{kind.plural}/{sub}" if sub else kind.plural
            why = self._why_not(verb, kind, resource, namespace, name)
            if why is not None:
                raise kind.forbidden(name, why)
        return super()._answer(request)

    def _why_not(self, verb: str, kind: Kind, resource: str, namespace: str, name: str) -> str | None:
        if self._asking.may(verb, resource, name):
            return None
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        return f'User "{self._asking.name}" cannot {verb} resource "{resource}" in API group "{kind.group}" {where}'

    @override
    def causes_of_status(self, item: Object, old: Object) -> list[Cause]:
        found: list[Cause] = []
        if "DRAResourceClaimGranularStatusAuthorization" in self.profile.gates:
            kind = self._kinds["resource.k8s.io", "resourceclaims"]

            def allowed(verb: str, resource: str, namespace: str, name: str) -> str | None:
                why = self._why_not(verb, kind, resource, namespace, name)
                return None if why is None else kind.forbidden(name, why).message.replace(kind.plural, resource, 1)

            status, before = item.get("status", {}), old.get("status", {})
            found += _binding(status, before, "update", allowed)
            if status.get("allocation") is not None:
                found += _devices(item["metadata"]["namespace"], status, before, self._asking, "update", allowed)
        return found + super().causes_of_status(item, old)


def _binding(status: Mapping[str, Any], before: Mapping[str, Any], verb: str, allowed: Allowed) -> list[Cause]:
    if all(status.get(name) == before.get(name) for name in ("allocation", "reservedFor")):
        return []
    why = allowed(verb, "resourceclaims/binding", "", "")
    if why is None:
        return []
    text = (
        f"Forbidden: changing status.allocation or status.reservedFor requires "
        f'resource="resourceclaims/binding", verb="{verb}" permission: {why}'
    )
    return [("FieldValueForbidden", "status.allocation", text)]


def _devices(
    namespace: str,
    status: Mapping[str, Any],
    before: Mapping[str, Any],
    account: Account,
    verb: str,
    allowed: Allowed,
) -> list[Cause]:
    ours = {device_key(device): device for device in status.get("devices", ())}
    theirs = {device_key(device): device for device in before.get("devices", ())}
    changed = sorted({key[0] for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)})
    verbs = [f"arbitrary-node:{verb}"]
    if account.node and account.node == _node_of(status.get("allocation") or {}):
        verbs.insert(0, f"associated-node:{verb}")
    found: list[Cause] = []
    for driver in changed:
        refusals = [allowed(each, "resourceclaims/driver", namespace, driver) for each in verbs]
        if None not in refusals:
            text = (
                f'Forbidden: changing status.devices requires resource="resourceclaims/driver", '
                f'verb="[{" ".join(verbs)}]" permission: {refusals[0]}'
            )
            found.append(("FieldValueForbidden", "status.devices", text))
    return found


def _node_of(allocation: Mapping[str, Any]) -> str:
    """Return the node of an allocation for just one node, "" for any other."""
    match allocation.get("nodeSelector"):
        case {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}:
            return str(name)
        case _:
            return ""
