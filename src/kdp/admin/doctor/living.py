"""A running plugin as its own status document describes it, read without trust.

The document may come from another version of kdp, or from another program. A field of the wrong kind is left out, so
that a question answers "not known" and does not fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast, final

import attrs

from ...storage.documents import parse_json
from .plain import list_in, mapping_in, number_in, string_in

MOST_LISTED = 100_000
"""Devices of a document that are looked at."""

_BLOCKED: Final = "the event loop has not run"
"""How a plugin says that a hook blocks it (`kdp.daemon.probes.BLOCKED`)."""

_POD_VOLUME: Final = re.compile(r"/pods/([0-9a-f-]{36})/volumes/")


@final
@attrs.frozen(kw_only=True)
class ListedDevice:
    """A device that the plugin lists.

    Attributes:
        id: Its id.
        is_healthy: Whether the plugin reports it as healthy.
        reason: Why not.
        nodes: The device nodes that a container gets, as paths on the node; None: the plugin does not tell.
    """

    id: str
    is_healthy: bool
    reason: str
    nodes: tuple[str, ...] | None


@final
@attrs.frozen(kw_only=True)
class ServedSlices:
    """What a DRA driver has published.

    Attributes:
        generation: The pool's generation; 0: nothing is published.
        problem: Why the slices are not as they should be; empty: they are, or there are none.
        dropped: Fields that the API server left out, each with the feature gate that is off.
        withheld: Devices that are not published, each with that gate; at most 20 of them.
    """

    generation: int = 0
    problem: str = ""
    dropped: tuple[tuple[str, str], ...] = ()
    withheld: Mapping[str, str] = attrs.field(factory=dict[str, str])


@final
@attrs.frozen(kw_only=True)
class KubeletList:
    """How the kubelet's list compares with the plugin's, as of the last time that the plugin asked.

    Attributes:
        at: When that was.
        since: Since when they differ; empty: they do not.
        missing: Healthy devices that the kubelet does not offer; at most 20 of them.
        phantom: Devices that it offers, and that the plugin does not report as healthy; at most 20 of them.
    """

    at: str
    since: str
    missing: tuple[str, ...]
    phantom: tuple[str, ...]


@final
@attrs.frozen(kw_only=True)
class ServedResource:
    """A resource, or a DRA driver, that the plugin serves.

    Attributes:
        name: Its name.
        state: The state of its session with the kubelet.
        reason: Why it is not connected, or empty.
        too_large: Why its newest device list is not sent; empty: it is.
        rival: Which other plugin serves it, too; empty: none that is known.
        given_twice: Which devices two pods hold; empty: none.
        kubelet_list: How the kubelet's list compares with this one; None: the plugin has not asked.
        slices: What a DRA driver has published.
        devices: How many devices it has.
        healthy: How many of them are healthy.
        listed: The devices; at most 20,000 of them.
    """

    name: str
    state: str
    reason: str
    too_large: str
    rival: str
    given_twice: str
    kubelet_list: KubeletList | None
    slices: ServedSlices
    devices: int
    healthy: int
    listed: tuple[ListedDevice, ...]


@final
@attrs.frozen(kw_only=True)
class Plugin:
    """A process that has, or had, a socket in the state directory, or in its pod.

    Attributes:
        socket: Its socket.
        problem: Why it told nothing; empty: it answered.
        version: The version of kdp that it runs.
        pid: Its process id in its own PID namespace.
        mode: Its mode, such as ``device-plugin``.
        is_ready: Whether it says that it is ready.
        is_blocked: Whether a hook blocks its event loop, so that it cannot tell more.
        problems: Why backends discover nothing, one text for each: a driver that is missing, or a hook that hangs.
        reasons: Why it is not ready, one text for each cause.
        refused: What is wrong with a configuration that it has refused; empty: nothing.
        tells_directories: Whether it tells which directories it uses; versions before did not.
        device_plugin_dir: Where it looks for the kubelet; None: it does not tell.
        cdi_dir: Where it writes CDI files; None: it writes none.
        registry_dir: The plugin watcher's directory; None: it registers in the device plugin directory, or nowhere.
        resources: What it serves.
    """

    socket: Path
    problem: str = ""
    version: str = ""
    pid: int = 0
    mode: str = ""
    is_ready: bool = False
    is_blocked: bool = False
    problems: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    refused: str = ""
    tells_directories: bool = False
    device_plugin_dir: Path | None = None
    cdi_dir: Path | None = None
    registry_dir: Path | None = None
    resources: tuple[ServedResource, ...] = ()

    @property
    def label(self) -> str:
        """How answers call it. In pods, all sockets have one name."""
        pod = pod_of(self.socket)
        return self.socket.name if pod is None else f"{self.socket.name} of pod {pod}"


def pod_of(socket: Path) -> str | None:
    """Return the UID of the pod in whose volume a socket is; None: it is in none."""
    match = _POD_VOLUME.search(str(socket))
    return None if match is None else match[1]


def plugin_of(socket: Path, code: int, text: str) -> Plugin:
    """Return a plugin from the answer to ``/status.json``; ``code`` is 0 if it is one."""
    if code != 0:
        problem = text.strip().partition("\n")[0].removeprefix(f"{socket}: ").partition(";")[0]
        return Plugin(socket=socket, problem=problem or "it closed the connection")
    try:
        document = parse_json(text)
    except ValueError:
        document = None
    found = mapping_in(document)
    if not isinstance(found.get("ready"), bool) or not isinstance(found.get("resources"), list):
        return Plugin(socket=socket, problem="its answer is not a status of kdp")
    backends = [mapping_in(each) for each in list_in(found.get("backends"))]
    problems = [
        f"{string_in(each.get('class'))}: {string_in(each.get('reason'))}" for each in backends if each.get("reason")
    ]
    resources = tuple(_resource(mapping_in(each)) for each in list_in(found["resources"]))
    reasons = [*problems, *(f"{each.name}: {each.reason}" for each in resources if each.reason)]
    directories = mapping_in(found.get("directories"))
    return Plugin(
        socket=socket,
        version=string_in(found.get("kdp")),
        pid=number_in(found.get("pid")),
        mode=string_in(found.get("mode")),
        is_ready=found["ready"] is True,
        is_blocked=_BLOCKED in string_in(found.get("reason")),
        problems=tuple(problems),
        reasons=tuple(filter(None, [string_in(found.get("reason")), *reasons])),
        refused=string_in(mapping_in(found.get("configuration")).get("reason")),
        tells_directories=isinstance(found.get("directories"), dict),
        device_plugin_dir=Path(plugins) if (plugins := string_in(directories.get("device_plugins"))) else None,
        cdi_dir=Path(cdi) if (cdi := string_in(directories.get("cdi"))) else None,
        registry_dir=Path(registry) if (registry := string_in(directories.get("plugins_registry"))) else None,
        resources=resources,
    )


def _resource(found: Mapping[str, Any]) -> ServedResource:
    return ServedResource(
        name=string_in(found.get("name")),
        state=string_in(found.get("state")),
        reason=string_in(found.get("reason")),
        too_large=string_in(found.get("too_large")),
        rival=string_in(found.get("rival")),
        given_twice=string_in(found.get("given_twice")),
        kubelet_list=_kubelet_list(found.get("kubelet_list")),
        slices=_slices(mapping_in(found.get("slices"))),
        devices=number_in(found.get("devices")),
        healthy=number_in(found.get("healthy")),
        listed=tuple(_device(mapping_in(each)) for each in list_in(found.get("listed"))[:MOST_LISTED]),
    )


def _slices(found: Mapping[str, Any]) -> ServedSlices:
    dropped = [mapping_in(each) for each in list_in(found.get("dropped"))]
    return ServedSlices(
        generation=number_in(found.get("generation")),
        problem=string_in(found.get("problem")),
        dropped=tuple((string_in(each.get("path")), string_in(each.get("gate"))) for each in dropped),
        withheld={name: string_in(gate) for name, gate in mapping_in(found.get("withheld")).items()},
    )


def _kubelet_list(found: object) -> KubeletList | None:
    if not isinstance(found, dict):
        return None
    told = mapping_in(cast("object", found))
    return KubeletList(
        at=string_in(told.get("at")),
        since=string_in(told.get("since")),
        missing=tuple(string_in(each) for each in list_in(told.get("missing"))),
        phantom=tuple(string_in(each) for each in list_in(told.get("phantom"))),
    )


def _device(found: Mapping[str, Any]) -> ListedDevice:
    nodes: object = found.get("nodes")
    return ListedDevice(
        id=string_in(found.get("id")),
        is_healthy=found.get("health") == "Healthy",
        reason=string_in(found.get("reason")),
        nodes=None if nodes is None else tuple(string_in(each) for each in list_in(nodes)),
    )
