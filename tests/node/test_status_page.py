"""The status page in a real cluster, as an administrator reaches it: a command in the pod, and a forwarded port."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from .conftest import Namespace
from .nodekit.machine import IMAGE as BUSYBOX
from .nodekit.tools import tool
from .test_manifests import Plugin, deployed, rendered, required

RESOURCE: Final = "example.com/fuse"

FETCH: Final = """
import http.client, json, re, subprocess, sys

kubectl, namespace, pod, asked = sys.argv[1:]
words = [kubectl, "exec", "-n", namespace, pod, "--", "kdp", "status", "--serve", "127.0.0.1:0"]
with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as serving:
    for line in serving.stderr:
        if found := re.search(r"page is at http://127\\.0\\.0\\.1:(\\d+)/", line):
            break
    words = [kubectl, "port-forward", "-n", namespace, f"pod/{pod}", f":{found[1]}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as forwarding:
        try:
            line = forwarding.stdout.readline()
            local = re.match(r"Forwarding from 127\\.0\\.0\\.1:(\\d+) -> ", line)[1]
            answers = []
            for path, host in json.loads(asked):
                connection = http.client.HTTPConnection("127.0.0.1", int(local), timeout=20)
                connection.request("GET", path, headers={"Host": host.replace("PORT", local)})
                answer = connection.getresponse()
                answers.append([answer.status, answer.read().decode()])
                connection.close()
            print(json.dumps(answers))
        finally:
            forwarding.terminate()
            serving.terminate()
"""
"""A program on the administrator's machine: it serves the page in the pod, forwards its port, and asks for pages."""


async def fetched(plugin: Plugin, *asked: tuple[str, str]) -> list[tuple[int, str]]:
    pod = await plugin.pod()
    words = (plugin.namespace, pod["metadata"]["name"], json.dumps(asked))
    said = await plugin.cluster.run(sys.executable, "-c", FETCH, tool("kubectl"), *words)
    return [(status, text) for status, text in json.loads(said)]


def holder(name: str) -> dict[str, Any]:
    """Return a pod that holds a device until it is removed."""
    container = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sleep", "600"]}
    spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    limited = {**container, "resources": {"limits": {RESOURCE: "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "containers": [limited]}}


async def test_the_page_shows_the_pod_that_holds_a_device_through_a_forwarded_port(
    namespace: Namespace, generic_image: Path
) -> None:
    required("/dev/fuse")
    documents = rendered(namespace, "minimal", "--set=count=2")
    async with deployed(namespace, generic_image, documents) as plugin:
        cluster = plugin.cluster
        await plugin.until_ready()
        await cluster.until_counted(RESOURCE, capacity=2, allocatable=2)
        await cluster.apply(holder("holds-one"), namespace=namespace.name)
        await cluster.until_pod("holds-one", "Running", namespace=namespace.name)

        async def names_the_pod() -> bool:
            [(status, text)] = await fetched(plugin, ("/", "localhost:PORT"))
            return status == 200 and f"{namespace.name}/holds-one" in text

        await cluster.until(names_the_pod, "the page names the pod that holds a device", every=1.0, seconds=60)
        pages = [(path, "evil.example:PORT") for path in ("/", "/page.json")]
        for status, text in await fetched(plugin, *pages):
            assert status == 421
            assert "holds-one" not in text
        probe = await plugin.exec("wget", "-q", "-S", "-O", "-", "http://127.0.0.1:8080/readyz")
        assert json.loads(probe)["ready"]
