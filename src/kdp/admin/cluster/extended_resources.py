"""Extended resources by hand: a number in a node's status that no device plugin stands behind. Without I/O.

Who wrote a number is told by the node's ``managedFields``: what the kubelet owns comes from a device plugin. A plugin
that has vanished leaves the number 0 behind: the kubelet writes it five minutes after the plugin has ended, and does
not remove it. Source: ``MachineInfo`` in ``pkg/kubelet/nodestatus/setters.go``, ``endpointStopGracePeriod`` in
``pkg/kubelet/cm/devicemanager/types.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...cluster.nodes import KUBELET, owners, part
from ...errors import ConfigurationError, InvalidNameError
from ...model.names import check_resource_name

if TYPE_CHECKING:
    from ...cluster.api import Object

MANAGER: Final = "kdp-node"
"""The name under which kdp writes a node's status."""

MOST: Final = 1_000_000_000

NO_DEVICE: Final = (
    "pods that ask for it are counted and scheduled, and get no device: no device node, no variable, no mount"
)

_EXAMPLE: Final = "example.com/dongle=4"


@final
@attrs.frozen(kw_only=True)
class ResourceChange:
    """A change of a node's status.

    Attributes:
        before: The number that the node has; None: it has none.
        after: The number that it is to have; None: none.
        patch: The JSON patch; empty: nothing is to be done.
        question: What an administrator must agree to first; None: nothing.
    """

    before: str | None
    after: str | None
    patch: tuple[Mapping[str, Any], ...] = ()
    question: str | None = None


def parse_assignment(text: str) -> tuple[str, int]:
    """Return name and number of ``example.com/dongle=4``.

    Raises:
        ConfigurationError: One of them breaks its rule, which the text says.
    """
    name, equals, digits = text.partition("=")
    if not equals:
        raise ConfigurationError(f"{text!r}: must be NAME=NUMBER; for example {_EXAMPLE}")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 20
    if not is_number or not 1 <= int(digits) <= MOST:
        raise ConfigurationError(
            f"{text!r}: the number must be a whole one from 1 to {MOST}; "
            f"for example {_EXAMPLE}. To take a resource away, "
            "use 'kdp node withdraw'"
        )
    return parse_name(name), int(digits)


def parse_name(name: str) -> str:
    """Return the name of an extended resource.

    Raises:
        ConfigurationError: It breaks a rule, which the text says.
    """
    try:
        return check_resource_name(name)
    except InvalidNameError as error:
        raise ConfigurationError(str(error)) from None


def advertising(node: Object, name: str, count: int, *, served_by: str | None) -> ResourceChange:
    """Return what gives a node so many of a resource.

    Args:
        node: The node.
        name: The resource.
        count: How many.
        served_by: The plugin of this node that serves it, in words; None: none is known.

    Raises:
        ConfigurationError: A device plugin serves it.
    """
    _refuse_served(node, name, served_by, "the kubelet would replace your number by the plugin's")
    before = _number(node, name)
    writer = _writer(node, name)
    after = str(count)
    question = None
    if before is not None and writer != MANAGER:
        whose = "nobody knows who wrote it" if writer is None else f"{writer} wrote it"
        if writer == KUBELET:
            whose = "the kubelet wrote it for a device plugin that has vanished, or that has no devices now"
        question = f"node {_name(node)} has {before} of {name}, and {whose}; replace it by {after}"
    allocatable = _amounts(node, "allocatable").get(name)
    patch = () if before == after == allocatable else _patch(node, name, before, after)
    return ResourceChange(before=before, after=after, patch=patch, question=question if patch else None)


def withdrawing(node: Object, name: str, *, served_by: str | None, force: bool = False) -> ResourceChange:
    """Return what takes a resource from a node; see `advertising`.

    A kubelet that has lost its own files forgets a plugin at once, and leaves the plugin's number in the status. With
    ``force`` that is removed, too: if the plugin is there all the same, the kubelet writes the number again.
    """
    why = "end the plugin first; the kubelet forgets it five minutes later. --force removes a number of no plugin"
    _refuse_served(node, name, served_by, why, force=force)
    before = _number(node, name)
    allocatable = _amounts(node, "allocatable").get(name)
    if before is None and allocatable is None:
        return ResourceChange(before=None, after=None)
    writer = _writer(node, name)
    question = None
    if writer == KUBELET:
        question = (
            f"node {_name(node)} has {before} of {name} from a device plugin that has vanished, or that has no devices "
            "now; remove it. If the plugin runs, or ended less than five minutes ago, the kubelet brings it back"
        )
    elif writer != MANAGER:
        whose = "nobody knows who wrote it" if writer is None else f"{writer} wrote it"
        question = f"node {_name(node)} has {before} of {name}, and {whose}; remove it"
    return ResourceChange(before=before, after=None, patch=_patch(node, name, before, None), question=question)


def is_of_kubelet(node: Object, name: str) -> bool:
    """Return whether the kubelet wrote the number of a resource that a node has."""
    return _number(node, name) is not None and _writer(node, name) == KUBELET


def _refuse_served(node: Object, name: str, served_by: str | None, why: str, *, force: bool = False) -> None:
    if served_by is not None:
        raise ConfigurationError(f"{name}: {served_by} serves it on this node; {why}")
    number = _number(node, name)
    if number not in (None, "0") and _writer(node, name) == KUBELET and not force:
        raise ConfigurationError(
            f"{name}: node {_name(node)} has {number} of it from its kubelet, so a device plugin serves it, or did so "
            f"less than five minutes ago; {why}"
        )


def _writer(node: Object, name: str) -> str | None:
    """Return who wrote the capacity; None: nobody knows."""
    found = owners(node, "status", "capacity", name)
    if KUBELET in found:
        return KUBELET
    return found[-1] if found else None


def _patch(node: Object, name: str, before: str | None, after: str | None) -> tuple[Mapping[str, Any], ...]:
    """Return the patch. It fails if the node is another one, or the number changed meanwhile.

    The kubelet makes allocatable of capacity within 10 s. Both are written, so that the scheduler knows at once.
    """
    key = name.replace("~", "~0").replace("/", "~1")
    operations: list[Mapping[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]}]
    if before is not None:
        operations.append({"op": "test", "path": f"/status/capacity/{key}", "value": before})
    for amounts in ("capacity", "allocatable"):
        path = f"/status/{amounts}/{key}"
        if after is not None:
            if amounts not in part(node, "status"):
                operations.append({"op": "add", "path": f"/status/{amounts}", "value": {}})
            operations.append({"op": "add", "path": path, "value": after})
        elif name in _amounts(node, amounts):
            operations.append({"op": "remove", "path": path})
    return tuple(operations)


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _number(node: Object, name: str) -> str | None:
    return _amounts(node, "capacity").get(name)


def _amounts(node: Object, name: str) -> Mapping[str, str]:
    return part(node, "status", name)
