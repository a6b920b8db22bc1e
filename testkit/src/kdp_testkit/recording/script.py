"""What is played of a recording, and which of its entries are compared. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .transcript import Entry


def ids_of(request: Mapping[str, Any]) -> str:
    """Return the device ids of a call as text."""
    ids = [*request.get("devices_ids", ())]
    for container in request.get("container_requests", ()):
        if "devices_ids" in container:
            ids += container["devices_ids"]
        else:
            ids.append(f"{container['allocation_size']} of {len(container['available_deviceIDs'])}")
    return ", ".join(ids)


def is_compared(entry: Entry) -> bool:
    """Return whether something of the plugin is compared at an entry."""
    if entry.what == "call":
        return entry.side == "plugin"
    return (
        entry.what in ("answer", "end")
        and entry.side == "plugin"
        and not (entry.what == "end" and entry.method == "ListAndWatch")
    )


def is_lost_connection(entry: Entry) -> bool:
    """Return whether a call ended because its connection broke, and not by the plugin's answer."""
    return entry.code == "UNAVAILABLE" and entry.detail.startswith(("error reading from server", "connection error"))


def played(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without Registers that no kubelet answered or the plugin did not await."""
    streams = {entry.registration for entry in entries if entry.method == "ListAndWatch"}
    vain = {
        entry.call
        for entry in entries
        if entry.method == "Register" and entry.what == "end" and entry.call not in streams
        if entry.side == "plugin" or entry.code == "UNAVAILABLE"
    }
    return [
        entry for entry in entries if entry.what in ("kubelet", "plugin", "closed") or entry.registration not in vain
    ]


def goes_on_without(entries: Sequence[Entry], position: int) -> bool:
    """Return whether the plugin went on after this stream: the kubelet called it over another connection."""
    ended = entries[position].registration
    known = {entry.call for entry in entries[:position] if entry.method == "Register" and entry.what == "call"}
    return any(
        later.what == "call" and later.side == "kubelet" and later.registration in known - {ended}
        for later in entries[position + 1 :]
    )


def is_kubelets_end(entries: Sequence[Entry], position: int) -> bool:
    """Return whether a stream ended because the kubelet went: nothing but ends lies between the two."""
    following = next((later for later in entries[position + 1 :] if later.what != "end"), None)
    return following is not None and following.what == "kubelet" and following.state == "gone"
