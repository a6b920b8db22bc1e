"""A Kubernetes Event as an object of core/v1: made anew, or the change that counts a repetition. Without I/O.

Source: ``k8s.io/kubernetes`` ``pkg/apis/core/validation/events.go``; events of a Node are in the namespace ``default``,
and have the node's name for its UID, as those of the kubelet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs

from ..errors import printable

if TYPE_CHECKING:
    from .api import Object

COMPONENT: Final = "kdp"
"""Who a device plugin is in Events. A DRA driver has its own name there."""

MOST_TEXT: Final = 1024
"""Bytes of an Event's message."""


@final
@attrs.frozen
class EventTarget:
    """What an Event is about.

    Attributes:
        kind: ``Node`` or ``Pod``.
        namespace: Where it is; of a Node, where its Events are.
        name: Its name.
        uid: Its UID.
    """

    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of_node(cls, name: str) -> Self:
        """Return a Node."""
        return cls("Node", "default", name, name)

    @classmethod
    def of_pod(cls, namespace: str, name: str, uid: str) -> Self:
        """Return a Pod."""
        return cls("Pod", namespace, name, uid)

    @property
    def reference(self) -> dict[str, str]:
        """The field ``involvedObject``."""
        found = {"apiVersion": "v1", "kind": self.kind, "name": self.name, "uid": self.uid}
        return found if self.kind == "Node" else {**found, "namespace": self.namespace}


def event_object(
    target: EventTarget,
    *,
    reason: str,
    message: str,
    is_warning: bool,
    component: str,
    node: str,
    first: float,
    last: float,
    count: int = 1,
) -> Object:
    """Return a new Event.

    Args:
        target: What it is about.
        reason: Why, in CamelCase.
        message: A sentence; what does not print is escaped, and what is too long is cut.
        is_warning: Whether its type is Warning, or else Normal.
        component: Who says so.
        node: On which node that is.
        first: When it was first so, in Unix seconds.
        last: When it was last so.
        count: How often it was so.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{target.name}.", "namespace": target.namespace},
        "involvedObject": target.reference,
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": cut(message),
        "source": {"component": component, "host": node},
        "reportingComponent": component,
        "reportingInstance": node,
        "firstTimestamp": _moment(first),
        **counted(count, last),
    }


def counted(count: int, last: float) -> dict[str, Any]:
    """Return the merge patch by which an Event that is there counts a repetition."""
    return {"lastTimestamp": _moment(last), "count": count}


def cut(message: str) -> str:
    """Return a message as it can be shown, with at most `MOST_TEXT` bytes."""
    return printable(message, MOST_TEXT).encode()[:MOST_TEXT].decode(errors="ignore")


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime  # late: a start does not need it

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
