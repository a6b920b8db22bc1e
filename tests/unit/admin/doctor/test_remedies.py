"""Remedies are typed in by root: a name that somebody else has chosen must stay one word of a command."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdp.admin.doctor.answers import Answer
from kdp.admin.doctor.catalogue import QUESTIONS
from kdp.admin.doctor.node import Node

from .samples import dead, device, node_in, plugin_dir, prefix, resource, status, written

HOSTILE = "; touch"


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"k{HOSTILE} ") as name:
        yield Path(name)


def nothing(root: Path) -> Node:
    return node_in(root)


def files_instead(root: Path) -> Node:
    node = node_in(root, environ={"KUBERNETES_SERVICE_HOST": "x"})
    for path in (node.paths.device_plugin_dir, node.cdi_dir, root / "state"):
        written(path, "")
    return node


def dead_plugins(root: Path) -> Node:
    node = node_in(root, f"{root}/0.sock: Connection refused; x")
    dead(plugin_dir(node) / f"{prefix(node)}0.sock")
    dead(root / "0.sock")
    dead(node.paths.kubelet_socket)
    return node


def odd_devices(root: Path) -> Node:
    paths = [str(written(root / f"host/dev/{name}", "")) for name in ("a", "b")]
    served = status(resource(device("w0", nodes=[path.removeprefix(f"{root}/host") for path in paths])))
    written(root / "cdi" / f"kdp_{HOSTILE} x.json", "no JSON")
    written(root / "cdi/kdp_a.json", json.dumps({"cdiVersion": "0.5.0", "kind": "kdp.example.com/w", "devices": []}))
    return node_in(root, served)


def remedies(node: Node) -> list[str]:
    answers = [each.ask(node) for each in QUESTIONS]
    return [each.remedy for each in answers if isinstance(each, Answer) and HOSTILE in each.remedy]


@pytest.mark.parametrize(("made", "least"), [(nothing, 0), (files_instead, 2), (dead_plugins, 1), (odd_devices, 1)])
def test_a_name_became_a_command_of_root(root: Path, made: Callable[[Path], Node], least: int) -> None:
    found = remedies(made(root))
    assert len(found) >= least
    for remedy in found:
        words = shlex.shlex(remedy, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        assert "touch" not in list(words), remedy
