"""The simulated kubelet as a process, and a client that talks to a plugin's socket itself.

The kubelet registers plugins; what is timed call by call goes through `Client`, which has no Python but its own loop
between the wire and the clock.
"""

from __future__ import annotations

import glob
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from .processes import Process
from .programs import api_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["RESOURCE", "Client", "Nursery", "devices_of", "kubelet", "plugin_socket"]

RESOURCE = "example.com/widget"


@contextmanager
def kubelet(root: Path) -> Iterator[Process]:
    """Run a kubelet on this root directory; it listens when the context is entered."""
    command = [sys.executable, "-m", "kdp_testkit.process", "--root", str(root)]
    with Process(command, log=root / "kubelet.log") as process:
        process.event("listening")
        yield process


class Nursery:
    """Kubelets one after another, each a process of its own that is there within milliseconds.

    They are forked from a process that has everything imported, because a thousand interpreters' starts would take
    longer than what is measured, and disturb it. What they say is in ``process.lines``.
    """

    def __init__(self, root: Path) -> None:
        self.process = Process([sys.executable, "-m", "benchmarks.nursery", str(root)], log=root / "kubelet.log")
        self.process.event("ready")

    def bear(self, listen_delay: float) -> tuple[int, int]:
        """Start a kubelet; return its pid and the number of its first line of output."""
        first = len(self.process.lines)
        self.process.say(listen_delay=listen_delay)
        return self.process.event("born", after=first)["pid"], first

    def bury(self, pid: int) -> None:
        """Kill the kubelet without a word and wait until it is gone."""
        first = len(self.process.lines)
        self.process.say(kill=pid)
        self.process.event("dead", after=first)


def plugin_socket(root: Path, prefix: str) -> str:
    """Return the newest visible socket of a plugin, without waiting for one."""
    found = glob.glob(str(root / "device-plugins" / f"{prefix}-*.sock"))
    return max(found, key=os.path.getmtime)


def devices_of(payload: bytes) -> dict[str, bool]:
    """Return the health of each device in a list message."""
    return {device.ID: device.health == "Healthy" for device in pb.ListAndWatchResponse.FromString(payload).devices}


class Client:
    """Calls one plugin as the kubelet does, over a connection of its own."""

    def __init__(self, path: str) -> None:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        grpc.channel_ready_future(self._channel).result(10.0)
        self._allocate: Any = self._channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
        self._watch: Any = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch", response_deserializer=_decoded
        )

    def allocate(self, ids: Sequence[str]) -> bytes:
        """Call Allocate for one container; return the reply's bytes."""
        return self._allocate(allocate_request(ids))  # type: ignore[no-any-return]

    def time_allocate(self, request: bytes, times: int) -> list[float]:
        """Return the seconds of so many calls, one after another."""
        call, clock, found = self._allocate, time.perf_counter, []
        for _ in range(times):
            began = clock()
            call(request)
            found.append(clock() - began)
        return found

    def watch(self) -> Any:
        """Call ListAndWatch: an iterator of (seconds, message), with the time when the message was decoded."""
        return self._watch(b"")

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def allocate_request(ids: Sequence[str]) -> bytes:
    """Return an Allocate request for one container."""
    return pb.AllocateRequest(  # type: ignore[no-any-return]
        container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
    ).SerializeToString()


def _decoded(payload: bytes) -> tuple[float, Any]:
    message = pb.ListAndWatchResponse.FromString(payload)
    return time.monotonic(), message
