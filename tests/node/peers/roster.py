"""Who is judged: kdp's examples, and the plugins of others that the Go modules here can build."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import attrs

from ..nodekit.tools import Missing, tool

__all__ = ["NAMES", "Peer", "foreign", "known"]

_HERE: Final = Path(__file__).resolve().parent


@attrs.frozen(kw_only=True)
class Peer:
    """A plugin and how it is run.

    Attributes:
        name: Its name in the table.
        version: Of what it was built from; empty if it was not told.
        remark: What must be known of the way it is run here.
        command: Its command, with the kit's placeholders.
        wrapper: What the whole kit is run by.
        is_mounted: Whether it has the kubelet's directory built in, and gets a mount namespace of its own.
    """

    name: str
    version: str
    command: Sequence[str]
    remark: str = ""
    wrapper: Sequence[str] = ()
    is_mounted: bool = False


_PLACEHOLDER: Final = re.compile(r"\{(root|device_plugins|plugins_registry|pod_resources)\}")

NAMES: Final = ("minimal", "generic", "reference", "sample-device-plugin", "k8s-rdma-shared-dev-plugin")
"""Those that are judged without being asked for."""


def known(name: str, directory: Path) -> Peer:
    """Return one of `NAMES`.

    Args:
        name: Its name.
        directory: An empty directory for its configuration.

    Raises:
        Missing: Something that it needs is not here; the text says what to do.
    """
    if name in ("minimal", "generic"):
        return _example(name, directory)
    if name == "reference":
        command = [os.fspath(tool("peer-reference")), "-dir", "{device_plugins}"]
        return Peer(name=name, version=_required("google.golang.org/grpc", "grpc-go "), command=command)
    if os.geteuid() != 0:
        raise Missing(f"{name} has the kubelet's directory built in: a mount namespace of its own needs root")
    if name == "sample-device-plugin":
        command = [os.fspath(tool("peer-sample"))]
        return Peer(name=name, version=_required("k8s.io/kubernetes"), command=command, is_mounted=True)
    if shutil.which("unshare") is None:
        raise Missing(f"{name} needs `unshare` of util-linux, for the files of a card that this machine does not have")
    return Peer(
        name=name,
        version=_required("github.com/Mellanox/k8s-rdma-shared-dev-plugin", module="rdma/go.mod"),
        command=[os.fspath(tool("peer-rdma"))],
        remark="its packages, called without the question for the kernel's RDMA mode, on the files of a card",
        wrapper=[os.fspath(_HERE / "rdma" / "machine.sh")],
        is_mounted=True,
    )


def foreign(text: str) -> Peer:
    """Return the peer that ``NAME[@VERSION]=COMMAND`` describes.

    A command without a placeholder has the kubelet's directory built in.

    Raises:
        ValueError: It describes none.
    """
    title, equals, words = text.partition("=")
    name, _, its_version = title.partition("@")
    command = shlex.split(words)
    if not (name and equals and command):
        raise ValueError(f"--peer {text!r}: must be NAME=COMMAND or NAME@VERSION=COMMAND")
    return Peer(name=name, version=its_version, command=command, is_mounted=not _PLACEHOLDER.search(words))


def _example(name: str, directory: Path) -> Peer:
    command = [os.fspath(Path(sys.executable).with_name("kdp")), "run", name]
    if name == "minimal" and not Path("/dev/fuse").exists():
        raise Missing("this kernel has no /dev/fuse, which examples/minimal serves")
    if name == "generic":
        config = directory / "generic.yaml"
        config.write_text("resources: [{name: example.com/null, groups: [{count: 3, paths: [{path: /dev/null}]}]}]")
        command += ["--set", f"config={config}"]
    return Peer(name=name, version=f"kdp {version('kdp-sdk')}", command=command)


def _required(path: str, before: str = "", module: str = "../go.mod") -> str:
    """Return the version of a module that a module file here requires."""
    found = re.search(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", (_HERE / module).read_text(), re.MULTILINE)
    assert found is not None, path
    return before + found[1]
