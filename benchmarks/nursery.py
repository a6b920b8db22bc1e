"""``python -m benchmarks.nursery ROOT``: forks kubelets on demand, each a process that can be killed.

The simulated kubelet of `kdp.testing` needs 4 ms of Python before it has understood a Register, more than the plugin
needs to send it. This one does less: it wipes, binds, waits, listens, and speaks the few frames of HTTP/2 (RFC 9113)
that a Register takes, by hand, as quickly as the kubelet's Go does. Then it dials the plugin and reads its lists.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from .programs import api_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
# HPACK (RFC 7541): ":status: 200" is indexed, the other two are literals that are not.
_RESPONSE = b"\x88\x0f\x10\x10application/grpc"
_TRAILERS = b"\x00\x0bgrpc-status\x010"
_EMPTY_MESSAGE = b"\0\0\0\0\0"


def _emit(event: str, when: int = 0, **fields: Any) -> None:
    line = {"event": event, "t": when or time.monotonic_ns(), **fields}
    os.write(1, (json.dumps(line) + "\n").encode())


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _take_register(connection: socket.socket, heard: Callable[[int, str], None]) -> None:
    """Answer one connection to kubelet.sock: its Register, and what else it says.

    Args:
        connection: The accepted socket.
        heard: Called with the time in ns and the endpoint, before the answer.
    """
    reader = connection.makefile("rb")
    if reader.read(len(_PREFACE)) != _PREFACE:
        return  # somebody only wanted to know whether we listen
    connection.sendall(_frame(_SETTINGS, 0, 0, b""))
    while head := reader.read(9):
        payload = reader.read(int.from_bytes(head[:3]))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, 0, b"" if kind == _SETTINGS else payload))
        elif kind == _DATA:
            when = time.monotonic_ns()
            request = pb.RegisterRequest.FromString(payload[len(_EMPTY_MESSAGE) :])
            heard(when, request.endpoint)
            connection.sendall(
                _frame(_HEADERS, _END_HEADERS, stream, _RESPONSE)
                + _frame(_DATA, 0, stream, _EMPTY_MESSAGE)
                + _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _TRAILERS)
            )


def _connect(directory: Path, when: int, endpoint: str) -> None:
    _emit("register_received", when, endpoint=endpoint)
    options = [("grpc.default_authority", "localhost")]
    channel = grpc.insecure_channel(f"unix:{directory / endpoint}", options=options)
    ask: Any = channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")
    try:
        ask(b"", timeout=10)
    except grpc.RpcError:
        return  # it is gone already; the kubelet would answer with an error, nobody here waits for it
    watch: Any = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
    threading.Thread(target=_read, args=(watch(b""),), daemon=True).start()


def _read(lists: Any) -> None:
    for payload in lists:
        _emit("list_received", devices=len(pb.ListAndWatchResponse.FromString(payload).devices))


def _warm_up() -> None:
    """Take a Register from ourselves: a forked process is slow until it has touched its pages."""
    ours, theirs = socket.socketpair()
    message = pb.RegisterRequest(endpoint="nowhere").SerializeToString()
    data = b"\0" + len(message).to_bytes(4, "big") + message
    theirs.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_DATA, _END_STREAM, 1, data))
    theirs.shutdown(socket.SHUT_WR)
    taking = threading.Thread(target=_take_register, args=(ours, lambda _when, _endpoint: None))
    taking.start()
    taking.join()
    theirs.close()
    ours.close()
    grpc.insecure_channel("unix:/nowhere").unary_unary("/warm/up")


def _be_kubelet(directory: Path, listen_delay: float) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _warm_up()
    _emit("born", pid=os.getpid())
    for path in directory.iterdir():
        if path.is_socket():
            path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "kubelet.sock"))
    time.sleep(listen_delay)
    listener.listen(64)
    _emit("listening")
    heard = functools.partial(_connect, directory)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take_register, args=(connection, heard), daemon=True).start()


def main() -> None:
    """Obey the lines of stdin until it ends."""
    _emit("ready")
    for line in sys.stdin:
        order = json.loads(line)
        if "kill" in order:
            os.kill(order["kill"], signal.SIGKILL)
            os.waitpid(order["kill"], 0)
            _emit("dead")
        elif os.fork() == 0:
            _be_kubelet(Path(sys.argv[1], "device-plugins"), order["listen_delay"])


if __name__ == "__main__":
    main()
