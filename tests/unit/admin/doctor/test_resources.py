"""Resources: not registered, badly named, served twice, without healthy devices, or in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdp.admin.doctor import devices, dra, resources
from kdp.admin.doctor.answers import Answer
from kdp.admin.doctor.node import Node, Once, Target
from kdp.daemon.probes import BLOCKED
from kdp.deviceplugin.status import ABSENT
from kdp.errors import ConfigurationError
from kdp_testkit.patience import PATIENCE

from .samples import LEFT_OUT, RESOURCE, device, node_in, plugin_dir, prefix, resource, status, told, written

GOOD = status(resource(device("w0")))

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "w-x7k2p"}

ABOUT_A_PLUGIN = (
    resources.ready,
    resources.registered,
    resources.name,
    resources.served_elsewhere,
    resources.allocatable,
    resources.same,
)


def test_without_an_answering_plugin_nothing_is_known(tmp_path: Path) -> None:
    for ask in ABOUT_A_PLUGIN:
        for node in (node_in(tmp_path), node_in(tmp_path, "Connection refused")):
            assert told(ask(node))[0] == "not known"


def test_a_plugin_in_order(tmp_path: Path) -> None:
    for ask in ABOUT_A_PLUGIN:
        assert told(ask(node_in(tmp_path, GOOD)))[0] in ("ok", "left out")


def test_a_plugin_that_is_not_ready(tmp_path: Path) -> None:
    waits = status(resource(), ready=False, backends=[{"class": "W", "reason": "the driver is not loaded"}])
    verdict, text = told(resources.ready(node_in(tmp_path, waits)))
    assert (verdict, "W: the driver is not loaded | " in text) == ("failed", True)
    assert "not registered" in told(resources.ready(node_in(tmp_path, status(resource(), ready=False))))[1]


def test_a_resource_without_a_stream(tmp_path: Path) -> None:
    waits = status(resource(device("w0"), state="awaiting stream"), ready=False)
    verdict, text = told(resources.registered(node_in(tmp_path, waits)))
    assert verdict == "failed"
    assert f"{RESOURCE}: awaiting stream | restart the kubelet" in text
    waits = status(resource(state="waiting", reason="there is no kubelet.sock"), ready=False)
    assert (
        "waiting (there is no kubelet.sock) | see the answers"
        in told(resources.registered(node_in(tmp_path, waits)))[1]
    )
    assert told(resources.registered(node_in(tmp_path, status())))[0] == "warning"


@pytest.mark.parametrize(
    ("served", "directory", "remedy"),
    [
        pytest.param(
            resource(device("w0", reason="no CDI"), reason="CDI file /c/w.json cannot be written; make /c writable"),
            None,
            "make /c writable",
            id="the plugin names it",
        ),
        pytest.param(resource(), None, "see in its log what the class passed over: ", id="no device"),
        pytest.param(resource(state="no hardware", reason="no card; none"), None, "see in its log what", id="none"),
        pytest.param(
            resource(state="waiting", reason="there is no kubelet.sock"),
            "/elsewhere",
            "give the plugin this kubelet's directory: --device-plugin-dir ",
            id="another directory",
        ),
        pytest.param(
            resource(state="waiting", reason="refused"), None, "see the answers about kubelet.sock", id="else"
        ),
    ],
)
def test_every_plugin_that_was_not_ready_was_sent_to_the_kubelets_log(
    tmp_path: Path, served: dict[str, Any], directory: str | None, remedy: str
) -> None:
    directories = {"device_plugins": directory or f"{tmp_path}/kubelet/device-plugins"}
    node = node_in(tmp_path, status(served, ready=False, directories=directories))
    assert told(resources.ready(node))[1].partition(" | ")[2].startswith(remedy)


def test_a_file_was_called_valid_whose_parameters_nobody_had_checked(tmp_path: Path) -> None:
    told_alone = told(resources.configuration(node_in(tmp_path, bad_file="")))
    assert told_alone == ("ok", "they are valid; kdp doctor TARGET checks the parameters, too | ")
    target = Once(lambda: Target(label="W", resources=(RESOURCE,), needs=None))
    assert told(resources.configuration(node_in(tmp_path, bad_file="", target=target))) == ("ok", "they are valid | ")


def test_a_name_that_the_kubelet_refuses(tmp_path: Path) -> None:
    target = Once(lambda: Target(label="W", resources=("widget",), needs=None))
    verdict, text = told(resources.name(node_in(tmp_path, target=target)))
    assert verdict == "failed"
    assert "resource name 'widget': must be a domain, one slash and a name" in text
    assert told(resources.target(node_in(tmp_path, target=target)))[0] == "ok"
    assert told(resources.name(node_in(tmp_path, status(resource(name="x.kubernetes.io/w")))))[0] == "failed"


def test_a_target_that_cannot_be_loaded(tmp_path: Path) -> None:
    def load() -> Target:
        raise ConfigurationError("target 'w:W': no module named 'w'")

    node = node_in(tmp_path, target=Once(load))
    assert told(resources.target(node)) == (
        "failed",
        "target 'w:W': no module named 'w' | correct the target or its parameters",
    )
    assert told(resources.name(node))[0] == "not known"
    assert told(resources.target(node_in(tmp_path))) == LEFT_OUT


OTHER = """
import socket, sys
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
made.listen()
print("listens", flush=True)
sys.stdin.read()
"""


def test_a_resource_that_two_processes_serve(tmp_path: Path) -> None:
    node = node_in(tmp_path, GOOD)
    directory = plugin_dir(node)
    paths = [str(directory / f"{prefix(node)}{token}-1.sock") for token in ("aaaaaaaa", "bbbbbbbb")]
    others: list[subprocess.Popen[bytes]] = []
    text = ""
    try:
        for path, count in zip(paths, (1, 2), strict=True):
            command = [sys.executable, "-c", OTHER, path]
            others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert others[-1].stdout is not None
            assert others[-1].stdout.readline() == b"listens\n"
            verdict, text = told(resources.served_elsewhere(node))
            assert verdict == ("ok" if count == 1 else "failed")
        assert f"{RESOURCE}: 2 sockets of several processes answer" in text
    finally:
        for other in others:
            other.communicate(timeout=PATIENCE)


def test_no_healthy_device(tmp_path: Path) -> None:
    sick = status(resource(*(device(f"w{n}", reason="fan failed") for n in range(2)), device("w2", reason="lost")))
    verdict, text = told(resources.allocatable(node_in(tmp_path, sick)))
    assert verdict == "failed"
    assert f"{RESOURCE}: 0 of 3 devices healthy; 2 devices: fan failed, 1 device: lost | look at the hardware" in text
    assert "no device was discovered" in told(resources.allocatable(node_in(tmp_path, status(resource()))))[1]
    half = status(resource(device("w0"), device("w1", reason="")))
    verdict, text = told(resources.allocatable(node_in(tmp_path, half)))
    assert (verdict, "1 of 2 devices healthy; 1 device: no reason was given" in text) == ("warning", True)


def compared(*, missing: tuple[str, ...] = (), phantom: tuple[str, ...] = ()) -> dict[str, Any]:
    since = "2026-01-01T00:00:00+00:00" if missing or phantom else None
    return {"at": "2026-01-01T00:01:00+00:00", "since": since, "missing": missing, "phantom": phantom}


def listing_of(tmp_path: Path, **more: Any) -> tuple[str, str]:
    return told(resources.same(node_in(tmp_path, status(resource(device("w0"), **more)))))


def test_a_kubelet_with_another_list(tmp_path: Path) -> None:
    verdict, text = listing_of(tmp_path, kubelet_list=compared(missing=("w0",)))
    assert (verdict, f"{RESOURCE}: the kubelet does not offer w0 since 2026-01-01T00:00:00" in text) == (
        "warning",
        True,
    )
    text = listing_of(tmp_path, kubelet_list=compared(phantom=("w1",)))[1]
    assert "the kubelet offers w1 since 2026-01-01T00:00:00+00:00, which the plugin does not report as healthy" in text
    assert listing_of(tmp_path, kubelet_list=compared())[0] == "ok"


def test_the_plugin_that_asks_the_kubelet_itself_is_asked_and_not_the_kubelet_once_more(tmp_path: Path) -> None:
    assert listing_of(tmp_path) == LEFT_OUT  # it has not compared yet


def test_a_rivals_devices_had_the_advice_to_restart_the_kubelet(tmp_path: Path) -> None:
    more = {"rival": "another plugin serves it", "kubelet_list": compared(phantom=("x",))}
    assert listing_of(tmp_path, **more) == LEFT_OUT


def test_a_list_that_is_too_large(tmp_path: Path) -> None:
    assert told(resources.list_size(node_in(tmp_path)))[0] == "not known"
    assert told(resources.list_size(node_in(tmp_path, status(resource()))))[0] == "ok"
    problem = "90000 devices can need 5000000 bytes in one list"
    held = status(resource(too_large=problem))
    verdict, text = told(resources.list_size(node_in(tmp_path, held)))
    assert (verdict, f"{RESOURCE}: {problem} | declare fewer devices" in text) == ("warning", True)
    assert text.endswith("until then the kubelet has the list before")
    none = status(resource(too_large=problem, state="waiting"))
    assert told(resources.list_size(node_in(tmp_path, none)))[0] == "failed"


BLOCKED_PLUGIN = status(ready=False, reason=BLOCKED)
RIVAL = "process 4711 serves this resource as well, at kdp-x.sock; unless this is an update, stop one of them"


def test_a_blocked_event_loop_was_a_plugin_that_serves_no_resource_yet(tmp_path: Path) -> None:
    node = node_in(tmp_path, BLOCKED_PLUGIN, environ=IN_POD)
    written(tmp_path / "account/namespace", "kube-system\n")
    for ask in (resources.ready, resources.registered):
        verdict, text = told(ask(node))
        assert (verdict, "the event loop of process 7 is blocked by a hook" in text) == ("failed", True)
        assert text.endswith("its log names the hook and the line: kubectl -n kube-system logs w-x7k2p")
    unknown: tuple[Callable[[Node], Answer | None], ...] = (resources.allocatable, resources.list_size, devices.nodes)
    for each in unknown:
        assert told(each(node)) == (
            "not known",
            "the event loop of a plugin is blocked, so it does not tell its devices | ",
        )
    driver = node_in(tmp_path, {**BLOCKED_PLUGIN, "mode": "dra"})
    assert told(dra.published(driver))[0] == "not known"


@pytest.mark.parametrize(
    ("rival", "seen"),
    [
        (RIVAL, "process 4711 serves this resource as well, at kdp-x.sock, beside process 7"),
        (
            "another plugin: the kubelet has 1 devices, as x; stop one",
            "the kubelet has 1 devices, as x, beside process 7",
        ),
    ],
)
def test_a_rival_that_the_plugin_itself_names_was_ok(tmp_path: Path, rival: str, seen: str) -> None:
    node = node_in(tmp_path, status(resource(device("w0"), rival=rival)), environ={"KDP_NODE_NAME": "n1"})
    verdict, text = told(resources.served_elsewhere(node))
    assert (verdict, seen in text) == ("failed", True), text
    assert text.endswith("unless an update is under way: kubectl get pods -A --field-selector spec.nodeName=n1")


def test_a_device_that_two_pods_hold_names_both(tmp_path: Path) -> None:
    assert told(resources.given_twice(node_in(tmp_path)))[0] == "not known"
    assert told(resources.given_twice(node_in(tmp_path, status(resource()))))[0] == "ok"
    twice = "two pods hold one device: w0 by ns/a and ns/b; w1 by ns/a and ns/b; delete one of the two pods"
    verdict, text = told(resources.given_twice(node_in(tmp_path, status(resource(given_twice=twice)))))
    assert verdict == "failed"
    assert f"{RESOURCE}: two pods hold one device: w0 by ns/a and ns/b; w1 by ns/a and ns/b | " in text
    assert text.endswith("as the second: kubectl -n ns delete pod b")


def test_a_missing_driver_sent_to_the_kubelet(tmp_path: Path) -> None:
    backend = {"class": "W", "reason": "the driver is not loaded"}
    waits = resource(state="waiting", reason="there is no device list yet")
    node = node_in(tmp_path, status(waits, ready=False, backends=[backend]))
    for ask in (resources.registered, resources.ready):
        verdict, text = told(ask(node))
        assert (verdict, "W: the driver is not loaded" in text) == ("failed", True)
        assert "| mend what the class names" in text
        assert "kubelet" not in text.partition("|")[2]
    text = told(resources.registered(node_in(tmp_path, status(ready=False, backends=[backend]))))[1]
    assert "the plugin serves no resource: W: the driver is not loaded | mend" in text


def test_a_resource_without_hardware_is_no_fault(tmp_path: Path) -> None:
    node = node_in(tmp_path, status(resource(state=resources.ABSENT)))
    assert resources.ABSENT == ABSENT
    assert told(resources.registered(node))[0] == told(resources.allocatable(node))[0] == "ok"


def test_a_bad_configuration_was_said_to_keep_a_new_plugin_from_starting(tmp_path: Path) -> None:
    bad = "c.yaml: unknown key 'x'"
    verdict, text = told(resources.configuration(node_in(tmp_path, GOOD, bad_file=bad)))
    assert (verdict, "the plugin keeps the last good configuration | correct the file" in text) == ("warning", True)
    assert text.endswith("kill -HUP 7")
    assert told(resources.configuration(node_in(tmp_path, bad_file=bad)))[0] == "failed"
    [question] = [each for each in resources.QUESTIONS if each.id == "configuration-file"]
    assert "keeps and uses the last good configuration" in question.why
    refused = status(resource(device("w0")), configuration={"reason": bad, "since": "2026-03-04T09:00:00+00:00"})
    assert told(resources.ready(node_in(tmp_path, refused)))[1].endswith("then let it be read again: kill -HUP 7")
