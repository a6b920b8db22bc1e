"""That the comparison can fail: one rule of the simulation broken, and a scenario is not seen alike any more."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import anyio
import attrs
import pytest

import kdp

from .nodekit import MINORS
from .nodekit.nodes import difference, lines, play
from .scenarios import SCENARIOS, SETTINGS

ROOT = Path(__file__).resolve().parents[2]


@attrs.frozen
class Rule:
    """A rule of the simulation, how it is broken, and the scenario that notices.

    Attributes:
        says: The rule.
        module: Of ``kdp.testing``.
        old: The text that keeps it.
        new: What stands there instead.
        scenario: Which one notices.
        minor: On which version.
    """

    says: str
    module: str
    old: str
    new: str
    scenario: str
    minor: str = "1.37"


RULES = [
    Rule(
        "only the exact word Healthy is healthy",
        "manager",
        "if device.health == HEALTHY else",
        "if device.health.title() == HEALTHY else",
        "health_is_a_word",
    ),
    Rule(
        "an id that is listed twice is counted twice if its health differs",
        "manager",
        "(healthy if device.health == HEALTHY else unhealthy).add(device.id)",
        "healthy.discard(device.id); unhealthy.discard(device.id); "
        "(healthy if device.health == HEALTHY else unhealthy).add(device.id)",
        "an_id_twice",
    ),
    Rule(
        "a plugin's end leaves the capacity",
        "manager",
        "self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))",
        "self.unhealthy.setdefault(resource, set())",
        "again_after_its_end",
    ),
    Rule(
        "the grace period is five minutes",
        "checks",
        "STOP_GRACE_PERIOD: Final = 300.0",
        "STOP_GRACE_PERIOD: Final = 290.0",
        "starts_after_the_plugins_end",
    ),
    Rule(
        "a checkpoint's resources are known again, without devices",
        "manager",
        "            self.healthy[resource] = set()\n            self.unhealthy[resource] = set()\n            self.endpoints",
        "            self.endpoints",
        "a_kubelet_restarts",
    ),
    Rule(
        "devices of a pod that is gone are free",
        "manager",
        "finished = self.assignments.keys() - set(self._active_pods())",
        "finished: set[str] = set()",
        "pods_take_and_leave",
    ),
    Rule(
        "a running container is not looked at before the API server was heard",
        "manager",
        "if not self.sources_ready and self._is_running(pod, container):",
        "if False:",
        "a_kubelet_restarts",
    ),
    Rule(
        "a pod with devices fails when none is healthy",
        "manager",
        "        if not healthy:\n",
        "        if False:\n",
        "none_is_healthy",
    ),
    Rule(
        "a pod whose device is ill is refused after a reboot",
        "manager",
        "if not healthy >= (held or set()):",
        "if False:",
        "a_device_is_ill_after_the_reboot",
    ),
    Rule(
        "an init container's devices are used again",
        "manager",
        "                pool |= assignment.device_ids",
        "                pool |= set()",
        "init_containers",
    ),
    Rule(
        "a sidecar keeps its devices",
        "manager",
        "stays = container in pod.containers or container.restartable",
        "stays = container in pod.containers",
        "sidecars",
    ),
    Rule(
        "what a failed Allocate was given is free again",
        "manager",
        "            except Exception:\n                self._booked = self._held()\n                raise",
        "            except Exception:\n                raise",
        "allocate_fails",
    ),
    Rule(
        "preferred devices that are not free are left out",
        "manager",
        "take(preferred & available)",
        "take(preferred)",
        "prefers_unknown",
    ),
    Rule(
        "what is chosen already must be in the preferred choice",
        "manager",
        "available | chosen, set(chosen), wanted",
        "available | chosen, set(), wanted",
        "prefers_with_init_devices",
    ),
    Rule(
        "PreStartContainer is skipped while the options are not known",
        "manager",
        "if endpoint.options is None or not endpoint.options.pre_start_required:",
        "if endpoint.options is not None and not endpoint.options.pre_start_required:",
        "a_kubelet_restarts_and_its_pods_start_again",
    ),
    Rule(
        "of several devices at one container path the first is taken",
        "pods",
        "devices.setdefault(device.container_path, device)",
        "devices[device.container_path] = device",
        "an_odd_reply",
    ),
    Rule(
        "a device with several NUMA nodes is written down once for each",
        "manager",
        "for node in (device.numa_nodes if device is not None else None) or (-1,):",
        "for node in ((device.numa_nodes if device is not None else None) or (-1,))[:1]:",
        "the_checkpoint",
    ),
    Rule(
        "1.37 refuses a path that is still on record",
        "manager",
        "if endpoint.socket_path in known:",
        "if False:",
        "the_same_path_twice",
    ),
    Rule(
        "up to 1.36 the end of an old stream ends the new registration",
        "profiles",
        "one_client_per_resource=True,\n        register_governs_connecting=True",
        "one_client_per_resource=False,\n        register_governs_connecting=True",
        "another_path",
        "1.36",
    ),
    Rule(
        "from 1.36 on the plugin watcher tries again",
        "profiles",
        "watcher_retries=True,\n        wipes_everything=False,\n        sees_restarted_containers=True,\n    ),\n)",
        "watcher_retries=False,\n        wipes_everything=False,\n        sees_restarted_containers=True,\n    ),\n)",
        "watched_options_fail",
    ),
    Rule(
        "a resource's name is a qualified name with a domain",
        "checks",
        'or "kubernetes.io/" in name',
        "",
        "wrong_requests",
    ),
    Rule(
        "only sockets are wiped",
        "profiles",
        "register_governs_connecting=True,\n        watcher_retries=True,\n        wipes_everything=False,\n"
        "        sees_restarted_containers=True,\n    ),\n)",
        "register_governs_connecting=True,\n        watcher_retries=True,\n        wipes_everything=True,\n"
        "        sees_restarted_containers=True,\n    ),\n)",
        "sockets_are_wiped",
    ),
]


UNBROKEN = Rule("nothing is broken", "manager", "class DeviceManager:", "class DeviceManager:", "an_odd_reply")


async def test_an_unbroken_copy_is_seen_alike(tmp_path: Path) -> None:
    assert not await seen(UNBROKEN, tmp_path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says)
async def test_a_broken_rule_is_seen(rule: Rule, tmp_path: Path) -> None:
    assert await seen(rule, tmp_path), f"the comparison did not notice that this rule was broken: {rule.says}"


async def seen(rule: Rule, folder: Path) -> str:
    """Break the rule in a copy of kdp, play its scenario on the copy and on the real one, and return what differs."""
    minor = next(minor for minor in MINORS if minor.name == rule.minor)
    if not minor.is_compiled:
        pytest.skip(f"devmgr-{minor.name} is not compiled: run `make node-tools`")
    assert kdp.__file__ is not None
    copy = folder / "kdp"
    shutil.copytree(Path(kdp.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = copy / "testing" / f"{rule.module}.py"
    text = source.read_text()
    assert text.count(rule.old) == 1, f"the rule is not kept by this text any more, write it anew: {rule.old!r}"
    source.write_text(text.replace(rule.old, rule.new))
    real: list[str] = []
    simulated: list[str] = []

    async def on_the_real_one() -> None:
        settings = SETTINGS.get(rule.scenario)
        real.extend(lines(await play(SCENARIOS[rule.scenario], minor, simulated=False, settings=settings)))

    async def on_the_broken_one() -> None:
        said = await anyio.run_process(
            [sys.executable, "-m", "tests.node.simulate", rule.scenario, rule.minor],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        simulated.extend(json.loads(said.stdout))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on_the_real_one)
        tasks.start_soon(on_the_broken_one)
    return difference(simulated, real)
