"""Remedies name the pod, the process, and the node, wherever these can be found."""

from __future__ import annotations

import os
from pathlib import Path

from tests.one_answer import answering

from kdp.admin.doctor import commands
from kdp.admin.doctor.living import Plugin
from kdp.operations.status_document import StatusDocument

from .samples import node_in, written

UID = "0b4c8d0e-1111-2222-3333-444455556666"
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "widgets-x7k2p"}


def test_remedies_had_placeholders_where_the_pod_is_known(tmp_path: Path) -> None:
    written(tmp_path / "account/namespace", "kube-system\n")
    node = node_in(tmp_path, environ=IN_POD)
    assert commands.logs(node, tmp_path / "0.sock") == "kubectl -n kube-system logs widgets-x7k2p"
    assert commands.kubectl(node, None, "exec", "-- ps") == "kubectl -n kube-system exec widgets-x7k2p -- ps"
    assert commands.give_memory(*commands.daemonset_of(node), 32 << 20) == (
        "give the container more memory: kubectl -n kube-system set resources daemonset/widgets --limits=memory=64Mi"
    )
    without = node_in(tmp_path / "b", environ={**IN_POD, "POD_NAMESPACE": "ns"})  # a pod without an account
    assert commands.logs(without, tmp_path / "0.sock") == "kubectl -n ns logs widgets-x7k2p"


def test_a_pod_is_named_from_the_node_by_the_kubelets_own_directory(tmp_path: Path) -> None:
    written(tmp_path / f"host/var/log/pods/ns_widgets-x7k2p_{UID}/main/0.log", "")
    socket = tmp_path / f"pods/{UID}/volumes/kubernetes.io~empty-dir/state/kdp.sock"
    assert commands.logs(node_in(tmp_path), socket) == "kubectl -n ns logs widgets-x7k2p"
    short = tmp_path / "s.sock"
    with answering(short, b""):
        written(tmp_path / f"host/proc/{os.getpid()}/cgroup", f"0::/kubepods/pod{UID}/c\n")
        assert commands.logs(node_in(tmp_path), short) == "kubectl -n ns logs widgets-x7k2p"
        written(tmp_path / f"host/proc/{os.getpid()}/cgroup", "0::/system.slice/widgets.service\n")
        assert commands.logs(node_in(tmp_path), short) == f"journalctl _PID={os.getpid()}"


def test_a_pod_that_is_not_known_is_looked_for(tmp_path: Path) -> None:
    """There was a placeholder, which no shell takes, and in a pod the pod's host name instead of the node's."""
    node = node_in(tmp_path, environ={"KDP_NODE_NAME": "n1"})
    assert commands.logs(node, tmp_path / "0.sock") == "kubectl get pods -A --field-selector spec.nodeName=n1"
    inside = node_in(tmp_path / "b", environ=IN_POD)
    assert commands.logs(inside, None) == commands.look_for_pods(inside) == "kubectl get pods -A -o wide"
    assert commands.look_for_pods(node) == "kubectl get pods -A --field-selector spec.nodeName=n1"
    status = StatusDocument(pid=7, is_ready=True, resources=())
    assert commands.hang_up(node, Plugin(socket=tmp_path / "0.sock", status=status)) == "kill -HUP 7"
