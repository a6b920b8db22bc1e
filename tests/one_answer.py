"""A server on a unix socket that gives each client the same bytes, whatever it asks."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def answering(path: Path, answer: bytes, *, asked: int = 1) -> Iterator[None]:
    """Listen at a path, and answer so many clients, one after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen()

        def serve() -> None:
            for _ in range(asked):
                client, _address = listening.accept()
                with client, contextlib.suppress(OSError):
                    client.recv(1000)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(10)
