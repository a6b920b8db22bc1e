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

import kdp_testkit

from .nodekit import MINORS
from .nodekit.nodes import difference, lines, play
from .scenarios import SCENARIOS, SETTINGS, title
from .table import Row, leave

pytestmark = pytest.mark.usefixtures("disturbing")

ROOT = Path(__file__).resolve().parents[2]


@attrs.frozen
class Rule:
    """A rule of the simulation, how it is broken, and the scenario that notices.

    Attributes:
        says: The rule.
        old: The text that keeps it, which stands once in the kit.
        new: What stands there instead.
        scenario: Which one notices.
        minor: On which version.
    """

    says: str
    old: str
    new: str
    scenario: str
    minor: str = "1.37"


_K137 = 'name="k137", kubelet="1.37.1", '

RULES = [
    Rule(
        "only the exact word Healthy is healthy",
        "if device.health == HEALTHY else",
        "if device.health.title() == HEALTHY else",
        "health_is_a_word",
    ),
    Rule(
        "an id that is listed twice is counted twice if its health differs",
        "(healthy if device.health == HEALTHY else unhealthy).add(device.id)",
        "healthy.discard(device.id); unhealthy.discard(device.id); "
        "(healthy if device.health == HEALTHY else unhealthy).add(device.id)",
        "an_id_twice",
    ),
    Rule(
        "a plugin's end leaves the capacity",
        "self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))",
        "self.unhealthy.setdefault(resource, set())",
        "again_after_its_end",
    ),
    Rule(
        "the grace period is five minutes",
        "STOP_GRACE_PERIOD: Final = 300.0",
        "STOP_GRACE_PERIOD: Final = 290.0",
        "starts_after_the_plugins_end",
    ),
    Rule(
        "a checkpoint's resources are known again, without devices",
        (
            "            self.healthy[resource] = set()\n            self.unhealthy[resource] = set()\n            "
            "self.endpoints"
        ),
        "            self.endpoints",
        "a_kubelet_restarts",
    ),
    Rule(
        "devices of a pod that is gone are free",
        "finished = self.assignments.keys() - set(self._active_pods())",
        "finished: set[str] = set()",
        "pods_take_and_leave",
    ),
    Rule(
        "a running container is not looked at before the API server was heard",
        "if not self.sources_ready and self._is_running(pod, container):",
        "if False:",
        "a_kubelet_restarts",
    ),
    Rule(
        "a pod with devices fails when none is healthy",
        "        if not healthy:\n            raise AllocationRefused(",
        "        if False:\n            raise AllocationRefused(",
        "none_is_healthy",
    ),
    Rule(
        "a pod whose device is ill is refused after a reboot",
        "if not healthy >= (held or set()):",
        "if False:",
        "a_device_is_ill_after_the_reboot",
    ),
    Rule(
        "an init container's devices are used again",
        "                pool |= assignment.device_ids",
        "                pool |= set()",
        "init_containers",
    ),
    Rule(
        "a sidecar keeps its devices",
        "stays = container in pod.containers or container.restartable",
        "stays = container in pod.containers",
        "sidecars",
    ),
    Rule(
        "what a failed Allocate was given is free again",
        "            except Exception:\n                self._reserved.pop(key, None)\n"
        "                self._booked = self._held()\n                raise",
        "            except Exception:\n                raise",
        "allocate_fails",
    ),
    Rule(
        "preferred devices that are not free are left out",
        "take(preferred & available)",
        "take(preferred)",
        "prefers_unknown",
    ),
    Rule(
        "what is chosen already must be in the preferred choice",
        "available | chosen, set(chosen), wanted",
        "available | chosen, set(), wanted",
        "prefers_with_init_devices",
    ),
    Rule(
        "PreStartContainer is skipped while the options are not known",
        "if endpoint.options is None or not endpoint.options.pre_start_required:",
        "if endpoint.options is not None and not endpoint.options.pre_start_required:",
        "a_kubelet_restarts_and_its_pods_start_again",
    ),
    Rule(
        "of several devices at one container path the first is taken",
        "devices.setdefault(device.container_path, device)",
        "devices[device.container_path] = device",
        "an_odd_reply",
    ),
    Rule(
        "a device with several NUMA nodes is written down once for each",
        "for node in devices[device_id].numa_nodes or (_NO_NODE,):",
        "for node in (devices[device_id].numa_nodes or (_NO_NODE,))[:1]:",
        "the_checkpoint",
    ),
    Rule(
        "1.37 refuses a path that is still on record",
        "if endpoint.socket_path in known:",
        "if False:",
        "the_same_path_twice",
    ),
    Rule(
        "up to 1.36 the end of an old stream ends the new registration",
        'kubelet="1.36.3",',
        'kubelet="1.36.3", one_client_per_resource=False,',
        "another_path",
        "1.36",
    ),
    Rule(
        "from 1.36 on the plugin watcher tries again",
        _K137,
        f"{_K137}watcher_retries=False, ",
        "watched_options_fail",
    ),
    Rule(
        "a resource's name is a qualified name with a domain",
        'or "kubernetes.io/" in name',
        "",
        "wrong_requests",
    ),
    Rule(
        "only sockets are wiped",
        _K137,
        f"{_K137}wipes_everything=True, ",
        "sockets_are_wiped",
    ),
    Rule(
        "a stopped endpoint is told as Go prints it",
        "endpoint &{{{{{{}} {{0 0}}}} {name} {connection} {ended} <nil>}} has been stopped",
        "endpoint {name} has been stopped",
        "prepares_after_the_plugins_end",
    ),
    Rule(
        "of two sets of NUMA nodes that are as good the one with the lower numbers is taken",
        "narrower = _width(candidate) < _width(current)",
        "narrower = _width(candidate) > _width(current)",
        "devices_on_two_nodes_best_effort",
    ),
    Rule(
        "restricted refuses what could be on fewer NUMA nodes",
        'return best, best.preferred or self.policy == "best-effort"',
        "return best, True",
        "one_is_left_on_each_node_restricted",
    ),
    Rule(
        "single-numa-node wants one NUMA node",
        "if hint.preferred and _count(hint) <= 1]",
        "if hint.preferred]",
        "devices_on_two_nodes_single_numa_node",
    ),
    Rule(
        "unhealthy devices count for how few NUMA nodes could do",
        "if _within(all_places, mask) >= wanted:",
        "if _within(free_places, mask) >= wanted:",
        "an_ill_device_makes_a_node_promising_restricted",
    ),
    Rule(
        "a resource without NUMA nodes has no preference",
        "return any(device.numa_nodes for device in devices.values())",
        "return True",
        "one_resource_does_not_care_restricted",
    ),
    Rule(
        "devices on the hint's NUMA nodes are taken first",
        "if needed < len(aligned):",
        "if False:",
        "devices_on_two_nodes_best_effort",
    ),
    Rule(
        "only devices on the hint's NUMA nodes are offered to GetPreferredAllocation where they suffice",
        "await self._preferred(resource, aligned | chosen,",
        "await self._preferred(resource, available | chosen,",
        "devices_on_two_nodes_best_effort",
    ),
    Rule(
        "with the pod's scope all containers are aligned together",
        'if self._topology.scope == "container":',
        "if True:",
        "a_whole_pod_on_nodes_single_numa_node",
    ),
    Rule(
        "a pod that the policy refuses is refused before any call",
        "if not life.manager.align(pod, container):",
        "if not life.manager.align(pod, container) and False:",
        "devices_on_two_nodes_single_numa_node",
    ),
    Rule(
        "up to 1.34 hints are tried over all NUMA nodes of the machine",
        "hints_over_every_node=version.hints_over_every_node",
        "hints_over_every_node=False",
        "most_nodes_have_no_device_restricted",
        "1.34",
    ),
    Rule(
        "plain init containers are not listed by pod-resources",
        "if container.restartable or container in pod.containers]",
        "]",
        "which_containers_are_listed",
    ),
    Rule(
        "pod-resources has one entry for each NUMA node of a device",
        "for node in device.numa_nodes)",
        "for node in device.numa_nodes[:1])",
        "who_holds_what",
    ),
    Rule(
        "a topology without nodes hides a device from GetAllocatableResources",
        "if device.numa_nodes is None:",
        "if not device.numa_nodes:",
        "who_holds_what",
    ),
    Rule(
        "a new kubelet knows no pods before the API server names them",
        "            if bound.admitted_in == self._lives\n        ]",
        "        ]",
        "a_new_kubelet_knows_no_pods",
    ),
    Rule(
        "more than a hundred calls a second are refused",
        "BURST: Final = 10",
        "BURST: Final = 1000",
        "too_many_calls",
    ),
    Rule(
        "a device that is back in the list has the pod's status written",
        "if known is None or known.health != device.health:",
        "if known is not None and known.health != device.health:",
        "a_pods_device_falls_ill",
    ),
    Rule(
        "a device that has vanished counts as healthy in the pod's status",
        '"Unhealthy" if device_id in table and table[device_id].health != HEALTHY else HEALTHY',
        '"Unhealthy" if device_id not in table or table[device_id].health != HEALTHY else HEALTHY',
        "a_pods_device_falls_ill",
    ),
    Rule(
        "only main containers have their devices' health in the pod's status",
        "for container in pod.containers:\n            found",
        "for container in pod.in_order:\n            found",
        "health_of_init_containers",
    ),
    Rule(
        "up to 1.36 a change of health is told by the id alone",
        "health_by_id_alone=version.one_client_per_resource",
        "health_by_id_alone=False",
        "one_id_in_two_resources",
        "1.36",
    ),
    Rule(
        "the pods API waits until all sources were heard",
        "if not self._is_ready():",
        "if False:",
        "pods_before_the_api_server_was_heard",
    ),
    Rule(
        "of a pod that is gone the pods API tells its names only",
        '_metadata(pod) + _field(2, b"") + _field(3, b"")',
        'encode_pod(pod, "Failed")',
        "pods_are_watched",
    ),
]


UNBROKEN = Rule(
    "nothing is broken", "class DeviceManager(DeviceTable):", "class DeviceManager(DeviceTable):", "an_odd_reply"
)


async def test_an_unbroken_copy_is_seen_alike(tmp_path: Path) -> None:
    assert not await seen(UNBROKEN, tmp_path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says)
async def test_a_broken_rule_is_seen(rule: Rule, tmp_path: Path) -> None:
    is_seen = bool(await seen(rule, tmp_path))
    leave(Row(rule.minor, rule.scenario, rule.says, title(SCENARIOS[rule.scenario]), is_seen))
    assert is_seen, f"the comparison did not notice that this rule was broken: {rule.says}"


async def seen(rule: Rule, folder: Path) -> str:
    """Break the rule in a copy of the kit, play its scenario on the copy and the real one, and return what differs."""
    minor = next(minor for minor in MINORS if minor.name == rule.minor)
    if not minor.is_compiled:
        pytest.skip(f"devmgr-{minor.name} is not compiled: run `make node-tools`")
    assert kdp_testkit.__file__ is not None
    copy = folder / "kdp_testkit"
    shutil.copytree(Path(kdp_testkit.__file__).parent, copy)  # with its compiled files, which are right for all but one
    sources = [file for file in copy.rglob("*.py") if rule.old in file.read_text()]
    assert len(sources) == 1, f"this text does not stand in one file of the kit, write it anew: {rule.old!r}"
    [source] = sources
    text = source.read_text()
    assert text.count(rule.old) == 1, f"{source.name} has this text several times, write it anew: {rule.old!r}"
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
            check=False,
        )
        assert said.returncode == 0, said.stderr.decode()
        simulated.extend(json.loads(said.stdout))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on_the_real_one)
        tasks.start_soon(on_the_broken_one)
    return difference(simulated, real)
