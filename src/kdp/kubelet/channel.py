"""Channels to the kubelet's own sockets: one for a few calls and then gone, so that none outlives a kubelet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import grpc

if TYPE_CHECKING:
    from pathlib import Path

MAX_RECEIVE_BYTES = 16 * 1024 * 1024
"""Largest answer in bytes: gRPC's 4 MiB are too few for tens of thousands of devices (contract section 10)."""

_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    # A connection of its own for each channel: an old one's back-off of up to 120 s must not be inherited.
    ("grpc.use_local_subchannel_pool", 1),
]


def unix_target(path: Path) -> str:
    """Return gRPC's address of a unix socket; the path is a URI's, so odd characters are escaped."""
    return "unix:" + quote(os.fspath(path))


def open_channel(path: Path) -> grpc.aio.Channel:
    """Return a new channel to a unix socket; an async context manager. It connects at its first call."""
    return grpc.aio.insecure_channel(unix_target(path), options=_OPTIONS)
