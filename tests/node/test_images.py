"""The sequence of each example's README: an image as its Dockerfile says, its manifest as it is committed, its pod.

No base image can be pulled here, so the line FROM is the one that is not followed: this machine's Python stands in for
it. What the other lines say is done, and a line that nobody knows here fails the test.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from .backend import Figure
from .conftest import Namespace
from .nodekit import Cluster, image
from .nodekit.cluster import NODE
from .nodekit.machine import HANDLER
from .nodekit.machine import IMAGE as BUSYBOX

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"

DEVICES: Final = {"minimal": ["/dev/fuse"], "generic": ["/dev/fuse", "/dev/net/tun"], "hwrng": ["/dev/hwrng"]}
"""Examples whose devices this kind of machine may have: their pods are run, too."""

NO_GPU: Final = "NvidiaGpu has no hardware here"
SAYS: Final = {"generic": "cannot be read", "fpga": "devices discovered: 0", "nvidia_gpu": NO_GPU}
LACKS: Final = "the plugin directory does not exist"
"""What a container without anything of the node says first."""

RUNTIME_CLASS: Final = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": HANDLER,
}


@attrs.frozen
class Followed:
    """What a Dockerfile comes to.

    Attributes:
        base: The image that it begins with.
        requirements: What it installs.
        command: What a container of it runs.
        env: Its variables.
    """

    base: str
    requirements: list[str]
    command: list[str]
    env: dict[str, str]


def follow(dockerfile: Path) -> Followed:
    """Read a Dockerfile line by line."""
    base = ""
    env: dict[str, str] = {}
    requirements: list[str] = []
    run: dict[str, list[str]] = {"ENTRYPOINT": [], "CMD": []}
    for line in dockerfile.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if not line or word.startswith("#"):
            continue
        if word == "FROM":
            base = rest
        elif word == "ENV":
            env |= dict(each.partition("=")[::2] for each in shlex.split(rest))
        elif word == "RUN":
            install = re.fullmatch(r"pip install --no-cache-dir (.*) && rm -r /src", rest)
            assert install is not None, line
            requirements += [_requirement(each) for each in shlex.split(install[1]) if each.startswith("/src")]
        elif word in run:
            run[word] = json.loads(rest)
        else:
            assert line == "COPY . /src", line
    return Followed(base, requirements, run["ENTRYPOINT"] + run["CMD"], env)


def _requirement(path: str) -> str:
    """Return the distribution that pip would build of ``/src/examples/minimal``, with its extras."""
    folder, bracket, extras = path.partition("[")
    project = tomllib.loads((ROOT / folder.removeprefix("/src").lstrip("/") / "pyproject.toml").read_text())
    return f"{project['project']['name']}{bracket}{extras}"


def read(file: Path) -> dict[str, Any]:
    """Return the last document of a file."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(file.read_text()))
    return documents[-1]


def is_served(example: str) -> bool:
    """Return whether this machine has the devices of an example."""
    return example in DEVICES and all(Path(node).exists() for node in DEVICES[example])


def asked_for(daemon_set: dict[str, Any]) -> list[str]:
    """Return a label that a node must have, the last that will do, as a list; empty: none is asked for."""
    affinity = daemon_set["spec"]["template"]["spec"].get("affinity")
    if affinity is None:
        return []
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = required["nodeSelectorTerms"][-1]["matchExpressions"]
    assert expression["values"] == ["true"]
    return [expression["key"]]


@asynccontextmanager
async def applied(cluster: Cluster, manifest: Path) -> AsyncIterator[str]:
    """Apply a manifest as it is, to a node with a label that it asks for; its DaemonSet, which is gone at the end."""
    document = read(manifest)
    name, place = document["metadata"]["name"], document["metadata"]["namespace"]
    labels = asked_for(document)
    await cluster.kubectl("label", "node", NODE, "kdp.example.com/test=true", *(f"{each}=true" for each in labels))
    await cluster.kubectl("apply", f"--filename={manifest}")
    try:
        yield name
    finally:
        await cluster.kubectl("label", "node", NODE, "kdp.example.com/test-", *(f"{each}-" for each in labels))
        await cluster.delete("apps/v1/daemonsets", name, namespace=place)

        async def is_gone() -> bool:
            return not await cluster.list("v1/pods", namespace=place, selector=f"app.kubernetes.io/name={name}")

        await cluster.until(is_gone, f"the pods of {name} are gone", every=0.05)


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/Dockerfile")))
async def test_the_sequence_of_the_readme(
    example: str, namespace: Namespace, system_layer: image.Layer, tmp_path: Path, figure: Figure
) -> None:
    folder, cluster = EXAMPLES / example, namespace.cluster
    began = time.monotonic()
    followed = follow(folder / "Dockerfile")
    manifest = folder / "manifests/daemonset.yaml"
    [name] = set(re.findall(r"image: (registry\S+)", manifest.read_text()))
    assert f"-f examples/{example}/Dockerfile" in (folder / "Dockerfile").read_text()
    assert followed.command[:2] == ["kdp", "run"]

    archive = tmp_path / "image.tar"
    files: dict[str, bytes | Path] = {"usr/bin/kdp": b'#!/bin/sh\nexec python3 -m kdp "$@"\n'}
    requirements, command = followed.requirements, followed.command
    image.python(archive, name, requirements, system_layer, command=command, env=followed.env, files=files)
    await cluster.load(archive)
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    took = time.monotonic() - began
    figure(f"{example}: an image as its Dockerfile says, {python} of here in place of {followed.base}", took, "s")

    # By its own entry point, without anything of the node, it says what it lacks.
    alone: dict[str, Any] = {"name": "alone", "image": name, "imagePullPolicy": "Never"}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [alone]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": spec}
    await cluster.apply(pod, namespace=namespace.name)

    if example == "nvidia_gpu":
        cluster.wrapper.write_text('#!/bin/sh\nexec runc "$@"\n')
        cluster.wrapper.chmod(0o755)
        await cluster.apply(RUNTIME_CLASS)
    async with applied(cluster, manifest) as plugin:
        await cluster.until_said("alone", SAYS.get(example, LACKS), namespace=namespace.name)
        if example == "nvidia_gpu":
            await cluster.until_said(f"{plugin}-*", NO_GPU, namespace="kube-system")
        await cluster.until_rolled_out(plugin, namespace="kube-system")  # without the hardware it counts as ready
        if is_served(example):
            user = read(folder / "pod.yaml")
            for container in user["spec"]["containers"]:
                container["image"] = BUSYBOX
            await cluster.apply(user, namespace=namespace.name)
            await cluster.until_pod(user["metadata"]["name"], "Succeeded", namespace=namespace.name)
