"""Each question about a node that is seen from outside, provoked."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kdp.admin.doctor.node import Once
from kdp.admin.doctor.outside.catalogue import QUESTIONS
from kdp.admin.doctor.outside.facts import Listed, Said

from ..samples import told
from .samples import (
    DRIVER,
    RESOURCE,
    daemonset,
    deleted,
    driver,
    facts,
    lease,
    moment,
    node,
    plugin,
    published,
    refused,
    user,
)

ASK = {each.id.removeprefix("outside-"): each for each in QUESTIONS}
NOT_READY = plugin(
    is_ready=False, state={"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}}
)
ENDED = {"reason": "Error", "exitCode": 78, "finishedAt": moment(600)}
RESTARTED = plugin(state={"restartCount": 3, "lastState": {"terminated": ENDED}})
OOM = plugin(state={"restartCount": 1, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}})
STARTUP = {"key": "example.com/kdp", "effect": "NoSchedule"}
TAINT = {"key": "w.example.com/unhealthy", "value": "fault", "effect": "NoSchedule"}
WAITS = user(
    conditions=[{"type": "PodScheduled", "message": f"0/1 nodes: Insufficient {RESOURCE}\x1b."}], phase="Pending"
)
DENIED = user(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed: no such node")
EVENT = {
    "type": "Warning",
    "reason": "DeviceFailed",
    "message": "w0: XID 79",
    "reportingComponent": "kdp",
    "lastTimestamp": moment(60),
}
CLASS = {
    "metadata": {"name": "widgets"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def claim(name: str = "c", of: str = "widgets", *, age: float = 1e6) -> Any:
    made = datetime.now(UTC) - timedelta(seconds=age)
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "creationTimestamp": made.isoformat(),
            "ownerReferences": [{"kind": "Pod", "name": "user"}],
        },
        "spec": {"devices": {"requests": [{"exactly": {"deviceClassName": of}}]}},
    }


CLAIM = claim()
HELD = {**CLAIM, "status": {"allocation": {"devices": {"results": [{"driver": DRIVER, "device": "w0"}]}}}}
OFFER = {"metadata": {"name": "other"}, "status": {"capacity": {"example.com/widget": "1", "cpu": "8"}}}
FORBIDDEN = {
    "reason": "FailedCreate",
    "message": 'pods "p-" is forbidden: violates PodSecurity',
    "involvedObject": {"kind": "DaemonSet", "name": "p", "uid": "d"},
    "lastTimestamp": moment(5),
}
UNREACHED = Listed(problem="get nodes node-0: the API server https://a was not reached: refused")
GONE = Listed(problem="get nodes node-0: the API server answered 404 NotFound: no", status=404)


def test_a_node_in_order_has_good_answers_only() -> None:
    for question in QUESTIONS:
        assert told(question.ask(Once(facts)))[0] == "ok"


@pytest.mark.parametrize(
    ("question", "seen", "verdict", "said"),
    [
        ("api-server", {"node": UNREACHED}, "failed", "was not reached: refused | check the kubeconfig"),
        (
            "node-ready",
            {"node": GONE},
            "failed",
            "the cluster has no node node-0 | name one of them: kubectl get nodes",
        ),
        (
            "node-ready",
            {"node": [node(status="False")]},
            "failed",
            f"it is not ready since {moment(100)}: R\\x1b: words",
        ),
        (
            "node-ready",
            {"node": [node(status="Unknown")], "leases": [lease(140)]},
            "failed",
            "kubelet is silent, since",
        ),
        ("node-ready", {"leases": [lease(45)]}, "warning", "its kubelet is silent for 45 s"),
        ("node-taints", {"node": [node(taints=[STARTUP])]}, "ok", "pods need a toleration of example.com/kdp"),
        (
            "node-taints",
            {
                "node": [node(taints=[STARTUP])],
                "pods": [plugin(container={"args": ["--startup-taint=example.com/kdp"]})],
            },
            "warning",
            "the start-up taint example.com/kdp is still there",
        ),
        ("node-taints", {"node": [node(unschedulable=True)]}, "warning", "kubectl uncordon node-0"),
        (
            "node-taints",
            {"node": [node(taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}])]},
            "warning",
            "disk-pressure",
        ),
        ("events", {"events": [EVENT]}, "warning", "DeviceFailed: w0: XID 79 | see all of them"),
        (
            "permissions",
            {"events": refused("list events", "'list' on 'events'")},
            "not known",
            "it lacks 'list' on 'events'",
        ),
        ("plugin-pod", {"pods": []}, "warning", "no pod on this node mounts the kubelet's directory"),
        ("plugin-pod-ready", {"pods": [NOT_READY]}, "failed", "not ready for 5 min, CrashLoopBackOff back-off 5m0s"),
        (
            "plugin-restarts",
            {"pods": [RESTARTED], "logs": {"kube-system/p-1": Said("no\x1bdriver", 200)}},
            "warning",
            "3 restarts, last: Error, exit code 78, 10 min ago; its last line: no\\x1bdriver | read why: kubectl",
        ),
        ("plugin-restarts", {"pods": [OOM]}, "warning", "exit code 137 | give the container more memory"),
        (
            "plugin-version",
            {"siblings": {"kube-system": [plugin(), plugin("p-2", image="w:2"), plugin("p-3", image="w:2")]}},
            "warning",
            "p-1 has w:1; p has w:2 on 2 nodes, w:1 on 1 node",
        ),
        ("plugin-answers", {"answers": {"kube-system/p-1": Said("not ready", 503)}}, "failed", "p-1: not ready"),
        (
            "plugin-answers",
            {
                "answers": {
                    "kube-system/p-1": Said('{"ready": false, "resources": {"r": {"reason": "no driver"}}}', 503)
                }
            },
            "failed",
            "p-1: no driver",
        ),
        (
            "allocatable",
            {"node": [node(allocatable={RESOURCE: "0"})]},
            "failed",
            "0 of 2 devices allocatable; their plugin",
        ),
        (
            "allocatable",
            {"node": [node(allocatable={RESOURCE: "0"})], "pods": []},
            "failed",
            "no device plugin's pod is here; pods that have devices keep them, and run on | bring the plugin back: ",
        ),
        (
            "allocatable",
            {"node": [node(allocatable={RESOURCE: "0"})], "pods": [NOT_READY]},
            "failed",
            (
                "of p-1 none is ready; pods that have devices keep them, and run on | bring the plugin back: "
                "kubectl -n kube-system describe pod p-1"
            ),
        ),
        (
            "allocatable",
            {"node": [node(allocatable={RESOURCE: "0"})], "pods": [driver()], "slices": [published()]},
            "ok",
            f"the devices are those of the DRA driver {DRIVER} now",
        ),
        (
            "allocatable",
            {
                "node": [node(capacity={"example.com/other": "2"}, allocatable={"example.com/other": "0"})],
                "pods": [driver()],
                "slices": [published()],
            },
            "warning",
            "example.com/other: 0 of 2 devices allocatable; no device plugin's pod is here; pods that have",
        ),
        ("requested", {"node": [node(allocatable={RESOURCE: "0"})], "pods": [user()]}, "ok", "pods keep 1 device"),
        (
            "zero",
            {"node": [node(capacity={RESOURCE: "0"})], "pods": [driver()]},
            "warning",
            "the node has 0 of example.com/w, and no device plugin's pod is here",
        ),
        (
            "resource-names",
            {"waiting": [user(resource="example.com/wigdet"), user()], "offered": [OFFER]},
            "warning",
            "n/user asks for example.com/wigdet, which no node has; did you mean example.com/widget?, n/user asks for",
        ),
        ("pods-terminating", {"pods": [plugin(), deleted(5)], "claims": [HELD]}, "ok", "none is late"),
        (
            "pods-terminating",
            {"pods": [plugin(), deleted(90)], "claims": [HELD]},
            "failed",
            f"n/user should have ended 90 s ago, and no pod of the driver {DRIVER} is ready here, which must release",
        ),
        (
            "pods-terminating",
            {"pods": [driver(), deleted(90)], "claims": [HELD]},
            "warning",
            "see what it waits for: kubectl -n n describe pod user; kubectl -n kube-system exec d-1 -- kdp status",
        ),
        (
            "daemonsets",
            {"daemonsets": [daemonset(made=0)], "refusals": [FORBIDDEN]},
            "failed",
            (
                'kube-system/p has 0 of 1 pod: pods "p-" is forbidden: violates PodSecurity | let the namespace have '
                "such pods: kubectl label namespace kube-system pod-security.kubernetes.io/enforce=privileged"
            ),
        ),
        (
            "daemonsets",
            {"daemonsets": [daemonset(wanted=0, made=0, selector={"a": "b"})]},
            "warning",
            "kube-system/p selects no node: a=b | compare it with the labels of the nodes: kubectl get nodes",
        ),
        (
            "plugin-pod",
            {"pods": [], "daemonsets": [daemonset(selector={"a": "b"})]},
            "warning",
            "selects a=b, which this node does not have | if it should: kubectl label node node-0 a=b",
        ),
        (
            "zero",
            {"node": [node(capacity={RESOURCE: "0"})], "pods": []},
            "warning",
            f"its kubelet wrote that when the plugin went away | remove what is left: kdp node withdraw {RESOURCE}",
        ),
        ("requested", {"pods": [plugin(), user(count=3)]}, "warning", "3 requested, 2 allocatable"),
        ("pods-waiting", {"waiting": [WAITS]}, "warning", f"1 pod: n/user: 0/1 nodes: Insufficient {RESOURCE}\\x1b."),
        (
            "pods-refused",
            {"pods": [DENIED]},
            "failed",
            "1 pod refused, the newest 30 s ago: n/user: Allocate failed: no such node",
        ),
        ("slices", {"slices": [published({"name": "w0"}, count=2)]}, "failed", "pool node-0: 1 of 2 slices"),
        (
            "device-taints",
            {"slices": [published({"name": "w0", "taints": [TAINT]})]},
            "warning",
            f"1 taint: w0 of {DRIVER}: w.example.com/unhealthy=fault:NoSchedule",
        ),
        ("class", {"slices": [published()]}, "failed", f"no DeviceClass selects the devices of {DRIVER}"),
        (
            "claims",
            {"slices": [published()], "classes": [CLASS], "claims": [CLAIM]},
            "warning",
            "1 claim without devices: n/c: without devices for ",
        ),
        (
            "claims",
            {"slices": [published()], "classes": [CLASS], "claims": [CLAIM], "waiting": [WAITS]},
            "warning",
            "1 claim without devices: n/c: 0/1 nodes: Insufficient example.com/w",
        ),
        (
            "claims",
            {"slices": [published()], "classes": [CLASS], "claims": [CLAIM, claim("d", "wigdets")]},
            "warning",
            "n/d: there is no DeviceClass wigdets; did you mean 'widgets'?",
        ),
        (
            "claims",
            {"slices": [published()], "classes": [CLASS], "claims": [claim(age=-3600)]},
            "ok",
            "the scheduler has not answered yet: n/c",
        ),
    ],
)
def test_each_fault(question: str, seen: dict[str, Any], verdict: str, said: str) -> None:
    answer = ASK[question].ask(Once(lambda: facts(**seen)))
    found, text = told(answer)
    assert (found, said in text) == (verdict, True), f"{found}: {text}"
    assert not re.search(r"\b(NAMESPACE|POD|NODE)\b", text), text


def of_device(reason: str, text: str, age: float, type: str = "Warning") -> Any:
    return {**EVENT, "reason": reason, "message": text, "lastTimestamp": moment(age), "type": type}


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([of_device("DeviceRecovered", "example.com/w: device w0 is healthy again", 40, "Normal")], "ok"),
        ([of_device("DeviceRecovered", "example.com/w: 2 devices are healthy again: w0, w1", 40, "Normal")], "ok"),
        ([of_device("DeviceRecovered", "example.com/w: device w0 is healthy again", 90, "Normal")], "warning"),
        ([of_device("DeviceRecovered", "example.com/w: device w1 is healthy again", 40, "Normal")], "warning"),
        ([of_device("DevicesAvailable", "example.com/w: healthy devices again: 1", 40, "Normal")], "warning"),
    ],
)
def test_an_event_whose_recovery_was_told_was_repeated(events: list[Any], verdict: str) -> None:
    sick = of_device("DeviceUnhealthy", "example.com/w: device w0 is unhealthy: XID 79", 60)
    assert told(ASK["events"].ask(Once(lambda: facts(events=[sick, *events]))))[0] == verdict


def test_a_restart_by_a_reboot_was_a_warning() -> None:
    rebooted = {"reason": "Rebooted", "lastTimestamp": moment(500)}
    early, late = [
        plugin(state={"restartCount": 1, "lastState": {"terminated": {"exitCode": 255, "finishedAt": moment(age)}}})
        for age in (600, 400)
    ]
    asked = ASK["plugin-restarts"]
    assert told(asked.ask(Once(lambda: facts(pods=[early], events=[rebooted]))))[0] == "ok"
    assert told(asked.ask(Once(lambda: facts(pods=[late], events=[rebooted]))))[0] == "warning"
    assert told(asked.ask(Once(lambda: facts(pods=[early]))))[0] == "warning"


def test_without_any_right_nothing_is_a_fault() -> None:
    names = ("node", "leases", "pods", "waiting", "events", "slices", "classes", "claims", "offered", "daemonsets")
    nothing = facts(**dict.fromkeys(names, refused()), siblings={}, answers={})
    for question in QUESTIONS:
        assert told(question.ask(Once(lambda: nothing)))[0] in ("ok", "not known")


def test_values_of_the_wrong_kind_do_not_fail_a_question() -> None:
    odd = {"metadata": 7, "spec": {"devices": 3, "pool": "x", "taints": 1}, "status": []}
    names = ("leases", "events", "slices", "classes", "claims", "offered", "daemonsets", "refusals", "waiting")
    for question in QUESTIONS:
        question.ask(Once(lambda: facts(**{name: [odd] for name in names})))


def test_a_remedy_names_the_pod_of_the_only_plugin() -> None:
    found = facts(slices=[published({"name": "w0", "taints": [TAINT]})])
    assert found.ask_plugins() == "kubectl -n kube-system exec p-1 -- kdp status"
    answer = ASK["device-taints"].ask(Once(lambda: found))
    assert answer is not None
    assert answer.remedy.endswith("kubectl -n kube-system exec p-1 -- kdp status")
