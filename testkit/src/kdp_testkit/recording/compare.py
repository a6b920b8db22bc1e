"""What is played of a recording, and is an answer of now the recorded one? If not: in what, field by field. No I/O.

The freedom that a plugin has, because a kubelet does not see it or does not care (contract sections 2 to 7):

* the name of its socket, and when it answers;
* the order of the devices in a list, and of the ids in a preferred allocation;
* the order of mounts and device nodes in an answer to Allocate (that of CDI names matters).

Everything else must be the same: every id, health, NUMA node, variable, path, permission, annotation, option, error
code and error text. What the recording leaves out (`redaction`) must be the same wherever it was the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .redaction import Bindings
    from .transcript import Entry

_Message = Mapping[str, Any]

_FEW = 5


def register_differences(recorded: _Message, version: str, options: tuple[bool, bool]) -> list[str]:
    """Compare a Register, socket name apart.

    Args:
        recorded: The recorded request.
        version: The API version of now.
        options: ``pre_start_required`` and ``get_preferred_allocation_available`` of now.
    """
    found: list[str] = []
    if recorded.get("version") != version:
        found.append(f"API version: recorded {recorded.get('version')!r}, now {version!r}")
    was: _Message = recorded.get("options") or {}
    for name, now in zip(("pre_start_required", "get_preferred_allocation_available"), options, strict=True):
        if bool(was.get(name)) != now:
            found.append(f"options.{name}: recorded {bool(was.get(name))}, now {now}")
    return found


def answer_differences(method: str, recorded: _Message, now: _Message, bindings: Bindings) -> list[str]:
    """Compare the one answer of a call, as lines of a recording have it."""
    if "bytes" in recorded or "bytes" in now or "message" not in recorded:
        # Not all of it can be decoded, so it is compared as it is.
        return [] if recorded == now else [f"the message: recorded {_content(recorded)}, now {_content(now)}"]
    before, after = recorded["message"], now["message"]
    if method == "Allocate":
        return _allocate(before["container_responses"], after["container_responses"], bindings)
    if method == "GetPreferredAllocation":
        before, after = ([sorted(r["deviceIDs"]) for r in m["container_responses"]] for m in (before, after))
        return [] if before == after else [f"preferred ids: recorded {_ids(before)}, now {_ids(after)}"]
    return [
        f"{name}: recorded {before.get(name)!r}, now {after.get(name)!r}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _content(line: _Message) -> str:
    return str(line.get("bytes", line.get("message")))[:200]


def _ids(answers: Sequence[Sequence[str]]) -> str:
    return "; ".join(", ".join(ids) or "none" for ids in answers) or "no answer for a container"


def _allocate(before: Sequence[_Message], after: Sequence[_Message], bindings: Bindings) -> list[str]:
    if len(before) != len(after):
        return [f"container responses: recorded {len(before)}, now {len(after)}"]
    found: list[str] = []
    for was, now in zip(before, after, strict=True):
        for field, word in (("envs", "env"), ("annotations", "annotation")):
            found += _mapping(word, was[field], now[field], bindings)
        for field, word in (("devices", "device node"), ("mounts", "mount")):
            found += _unordered(word, was[field], now[field], bindings)
        names = [[device["name"] for device in reply["cdi_devices"]] for reply in (was, now)]
        if names[0] != names[1]:
            found.append(f"CDI devices: recorded {_ids(names[:1])}, now {_ids(names[1:])}")
    return found


def _mapping(word: str, before: Mapping[str, str], after: Mapping[str, str], bindings: Bindings) -> list[str]:
    found: list[str] = []
    for name in {**before, **after}:
        if name not in after:
            found.append(f"{word} {name}: recorded {before[name]!r}, now missing")
        elif name not in before:
            found.append(f"{word} {name}: not recorded, now {after[name]!r}")
        elif not bindings.same(before[name], after[name]):
            found.append(f"{word} {name}: recorded {before[name]!r}, now {after[name]!r}")
    return found


def _unordered(word: str, before: Sequence[_Message], after: Sequence[_Message], bindings: Bindings) -> list[str]:
    left = [*after]
    missing: list[_Message] = []
    for spec in before:
        for candidate in left:
            if bindings.same(spec, candidate):
                left.remove(candidate)
                break
        else:
            missing.append(spec)
    found: list[str] = []
    for spec in missing:
        twins = [candidate for candidate in left if candidate["container_path"] == spec["container_path"]]
        if twins:
            left.remove(twins[0])
            found.append(f"{word} {_place(spec)}: now {_place(twins[0])}")
        else:
            found.append(f"{word} {_place(spec)}: now missing")
    return found + [f"{word} {_place(spec)}: not recorded" for spec in left]


def _place(spec: _Message) -> str:
    how = spec.get("permissions", "read-only" if spec.get("read_only") else "read-write")
    return f"{spec['host_path']} at {spec['container_path']} ({how or 'no permissions'})"


def list_differences(recorded: _Message, now: _Message | None) -> list[str]:
    """Compare two device lists; None: there has been no list yet."""
    if now is None:
        return ["recorded a list, now none came"]
    if "message" not in recorded or "message" not in now:
        return [] if recorded == now else ["the list: is no valid message"]
    before, after = _by_id(recorded["message"]["devices"]), _by_id(now["message"]["devices"])
    found: list[str] = []
    missing, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if missing:
        found.append(f"devices that are missing now: {_some(missing)}")
    if new:
        found.append(f"devices that were not recorded: {_some(new)}")
    found += [
        f"device {name}: recorded {' and '.join(before[name])}, now {' and '.join(after[name])}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    return found if len(found) <= _FEW else [*found[:_FEW], f"and {len(found) - _FEW} more"]


def _by_id(devices: Sequence[_Message]) -> dict[str, list[str]]:
    """Return what is said of each device; an id that is listed twice has two entries, as it counts twice."""
    found: dict[str, list[str]] = {}
    for device in devices:
        topology = device.get("topology")
        nodes = "" if topology is None else f" on NUMA {','.join(str(n['ID']) for n in topology['nodes']) or 'none'}"
        found.setdefault(device["ID"], []).append((device["health"] or "no health") + nodes)
    return found


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _FEW} more" if len(ids) > _FEW else ""
    return ", ".join(ids[:_FEW]) + more


def error_differences(code: str, detail: str, now: tuple[str, str] | None, bindings: Bindings) -> list[str]:
    """Compare the end of a call that failed; None: it was answered now."""
    if now is None:
        return [f"recorded the error {code}: {detail}, now it is answered"]
    if code != now[0] or not bindings.same(detail, now[1]):
        return [f"error: recorded {code}: {detail}, now {now[0]}: {now[1]}"]
    return []


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
