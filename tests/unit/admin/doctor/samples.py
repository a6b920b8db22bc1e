"""A node in a directory, sockets that answer or do not, and a plugin's status document."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kdp.admin.doctor.answers import Answer
from kdp.admin.doctor.cluster import ClusterFacts
from kdp.admin.doctor.node import Node, Once
from kdp.hardware.host import Host
from kdp.kubelet.paths import KubeletPaths
from kdp.kubelet.sockets import plugin_prefix

RESOURCE = "example.com/w"
LEFT_OUT = "left out", ""


def device(name: str, *, reason: str | None = None, nodes: list[str] | None = None) -> dict[str, Any]:
    health = "Healthy" if reason is None else "Unhealthy"
    return {"id": name, "health": health, "reason": reason, "nodes": [] if nodes is None else nodes}


def resource(*devices: Mapping[str, Any], name: str = RESOURCE, **more: Any) -> dict[str, Any]:
    healthy = sum(each["health"] == "Healthy" for each in devices)
    counts = {"devices": len(devices), "healthy": healthy}
    return {"name": name, "state": "connected", "reason": None, **counts, "listed": list(devices), **more}


def event(text: str) -> dict[str, Any]:
    return {"at": "2026-03-04T09:00:00+00:00", "kind": "fault", "text": text}


def status(*resources: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    process = {"kdp": "0.1.0", "pid": 7, "mode": "device-plugin", "node": None}
    return {**process, "ready": True, "reason": None, "backends": [], "resources": list(resources), **more}


def node_in(root: Path, *documents: Mapping[str, Any] | str, **more: Any) -> Node:
    """Return a node whose plugins answer with these documents, or with a reason."""
    answers = {
        root / f"{number}.sock": (1, each) if isinstance(each, str) else (0, json.dumps(each))
        for number, each in enumerate(documents)
    }
    given: dict[str, Any] = {
        "paths": KubeletPaths.simulated(root / "kubelet"),
        "state_dir": root / "state",
        "sockets": tuple(answers),
        "cdi_dir": root / "cdi",
        "cdi_dirs": (root / "cdi",),
        "host": Host(root / "host"),
        "account": root / "account",
        "own": root / "self",
        "sys": root / "sys",
        "cgroups": root / "cgroup",
        "environ": {},
        "import_path": (),
        "ask": answers.__getitem__,
        "cluster": ClusterFacts(problem="nobody is asked here"),
    }
    given |= more
    host, sockets, cluster = given.pop("host"), given.pop("sockets"), given.pop("cluster")
    return Node(
        find_host=Once(lambda: host), find_sockets=Once(lambda: sockets), cluster=Once(lambda: cluster), **given
    )


def plugin_dir(node: Node) -> Path:
    node.paths.device_plugin_dir.mkdir(parents=True)
    return node.paths.device_plugin_dir


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A process that listens and does nothing more, as one that is stopped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))
        made.listen()
        yield made


def dead(path: Path) -> None:
    with listening(path):
        pass


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def prefix(node: Node) -> str:
    return plugin_prefix(node.paths.device_plugin_dir, RESOURCE)


def told(answer: Answer | None) -> tuple[str, str]:
    """Return the verdict and both sentences in one, and check that a fault says what mends it."""
    if answer is None:
        return LEFT_OUT
    if answer.verdict.value in ("warning", "failed"):
        assert answer.remedy
    return answer.verdict.value, f"{answer.seen} | {answer.remedy}"
