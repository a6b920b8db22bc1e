"""Device nodes: missing, of another kind, that nobody may open, or in order."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from kdp.admin.doctor import devices
from kdp.admin.doctor.node import Node, Once, Target
from kdp.hardware.host import Host
from kdp.model.backend import Needs

from .samples import LEFT_OUT, device, node_in, resource, status, told


def serving(root: Path, *nodes: str, host: Path = Path("/")) -> Node:
    return node_in(root, status(resource(device("w0", nodes=[*nodes]))), host=Host(host))


def test_a_node_that_is_missing(tmp_path: Path) -> None:
    verdict, text = told(devices.nodes(serving(tmp_path, "/dev/null", "/dev/absent0")))
    assert (verdict, "missing: /dev/absent0 | load the driver" in text) == ("failed", True)


def test_a_node_that_nobody_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "look", lambda host, path: (stat.S_IFCHR, 0))
    verdict, text = told(devices.nodes(serving(tmp_path, "/dev/w0")))
    assert (verdict, "may open /dev/w0 | give it a mode" in text) == ("warning", True)


def opening(root: Path, *nodes: str, pod: bool = False) -> Node:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if pod else {}
    target = Once(lambda: Target(label="W", resources=(), needs=Needs(opened_nodes=nodes)))
    return node_in(root, target=target, host=Host(), environ=environ)


def test_nodes_that_the_backend_opens(tmp_path: Path) -> None:
    assert told(devices.opened(node_in(tmp_path))) == LEFT_OUT
    assert told(devices.opened(opening(tmp_path)))[0] == "ok"
    assert told(devices.opened(opening(tmp_path, "/dev/null"))) == ("ok", "can be opened: /dev/null | ")
    verdict, text = told(devices.opened(opening(tmp_path, "/dev/absent0")))
    assert (verdict, "cannot be opened: No such file or directory | load the driver" in text) == ("failed", True)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(errno.EPERM, "the container's control group refuses it"), (errno.EACCES, "a user who may open it")],
)
def test_a_container_that_refuses_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, remedy: str
) -> None:
    monkeypatch.setattr(devices, "_try", lambda node, path: error)
    verdict, text = told(devices.opened(opening(tmp_path, "/dev/w0", pod=True)))
    assert verdict == "failed"
    assert f"{os.strerror(error)} | " in text
    assert remedy in text
