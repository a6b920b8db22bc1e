"""`Alarms`: a Prometheus on a node of a cluster, which scrapes the pods of plugins, and raises kdp's alerts.

It asks kube-state-metrics, too. Both run in the node's namespaces, as the pods' addresses are there. Debian's
Prometheus does not ask an API server for its targets, so `Alarms` lists them in a file.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.parse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import anyio
import yaml
from anyio import AsyncContextManagerMixin
from typing_extensions import override

from .cluster import Cluster
from .tools import BIN, program, tool

RULES: Final = Path(__file__).parents[3] / "deploy/prometheus/kdp.rules.yaml"

_PROMETHEUS: Final = "127.0.0.1:9090"
_STATE: Final = 9101
_EVALUATED: Final = 2.5
"""Seconds after which the rules have been evaluated over that."""

_ASK: Final = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


def rules() -> dict[str, Any]:
    """Return kdp's alerts by their names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


class Alarms(AsyncContextManagerMixin):
    """Watches one namespace. An async context manager: Prometheus answers from entry to exit.

    An alert is raised as soon as its expression holds, and not after the time that its rule says.

    Args:
        cluster: Where.
        namespace: The namespace of the plugins.

    Raises:
        Missing: A program is not here.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._programs = program("prometheus", BIN / "prometheus/usr/bin"), tool("kube-state-metrics")
        self._cluster = cluster
        self._namespace = namespace
        self._work = cluster.work / "alarms"

    @override
    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        prometheus, state = self._programs
        self._work.mkdir()
        self._configure()
        try:
            await self._cluster.spawn(
                "kube-state-metrics",
                state,
                f"--kubeconfig={self._cluster.environment()['KUBECONFIG']}",
                f"--namespaces={self._namespace}",
                "--resources=daemonsets,nodes,pods",
                "--host=127.0.0.1",
                f"--port={_STATE}",
                "--telemetry-host=127.0.0.1",
                f"--telemetry-port={_STATE + 1}",
            )
            await self._cluster.spawn(
                "prometheus",
                prometheus,
                f"--config.file={self._work}/prometheus.yml",
                f"--storage.tsdb.path={self._work}/data",
                f"--web.listen-address={_PROMETHEUS}",
            )
            await self._cluster.until(self._sees_state, "Prometheus has an answer of kube-state-metrics")
            await anyio.sleep(_EVALUATED)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._follow_pods)
                yield self
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for name in ("prometheus", "kube-state-metrics"):
                    await self._cluster.kill(name)
                shutil.rmtree(self._work, ignore_errors=True)

    def _configure(self) -> None:
        self._targets.write_text("[]")
        state = [{"targets": [f"127.0.0.1:{_STATE}"]}]
        written = yaml.safe_load(RULES.read_text())
        for group in written["groups"]:
            for rule in group["rules"]:
                rule.pop("for", None)
        (self._work / "rules.yml").write_text(yaml.safe_dump(written))
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self._work / "rules.yml")],
            "scrape_configs": [
                {
                    "job_name": "plugins",
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
                },
                {"job_name": "state", "honor_labels": True, "static_configs": state},
            ],
        }
        (self._work / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    @property
    def _targets(self) -> Path:
        return self._work / "targets.json"

    async def _follow_pods(self) -> None:
        """List each pod's port of the name ``http``, with the labels that an operator's monitor of pods gives it."""
        while True:
            found: list[Any] = []
            for pod in await self._cluster.list("v1/pods", namespace=self._namespace):
                address = pod["status"].get("podIP")
                ports = [port for each in pod["spec"]["containers"] for port in each.get("ports", ())]
                labels = {"job": self._namespace, "namespace": self._namespace, "pod": pod["metadata"]["name"]}
                found += [
                    {
                        "targets": [f"{address}:{port['containerPort']}"],
                        "labels": {**labels, "node": pod["spec"].get("nodeName", "")},
                    }
                    for port in ports
                    if address and port.get("name") == "http"
                ]
            draft = self._targets.with_suffix(".new")
            draft.write_text(json.dumps(found))
            draft.replace(self._targets)
            await anyio.sleep(1.0)

    async def _sees_state(self) -> bool:
        try:
            return bool((await self._ask("query?query=kube_node_info"))["result"])
        except RuntimeError:  # it does not listen yet
            return False

    async def _ask(self, question: str) -> Any:
        return json.loads(
            await self._cluster.run(sys.executable, "-c", _ASK, f"http://{_PROMETHEUS}/api/v1/{question}")
        )["data"]

    async def until(self, expression: str) -> None:
        """Wait until an expression has a value."""

        async def has_value() -> bool:
            return bool((await self._ask(f"query?query={urllib.parse.quote(expression)}"))["result"])

        await self._cluster.until(has_value, f"Prometheus has {expression}", every=0.2)

    async def raised(self) -> dict[str, str]:
        """Return the alerts that are raised now, each with its summary."""
        found = (await self._ask("alerts"))["alerts"]
        return {each["labels"]["alertname"]: each["annotations"]["summary"] for each in found}
