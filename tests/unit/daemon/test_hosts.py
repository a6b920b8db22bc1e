"""By which names a page that names pods may be asked for."""

from __future__ import annotations

import os

import pytest

from kdp.daemon.hosts import is_familiar


@pytest.mark.parametrize(
    "host",
    [
        "",  # a program without the header, as HTTP/1.0 allows
        "localhost",
        "LocalHost:8080",  # kubectl port-forward
        "localhost.:8080",
        "status.localhost:1",
        "127.0.0.1:9000",
        "10.1.2.3",  # the kubelet's probes, and Prometheus by a pod's address
        "[::1]:8080",
        "[fe80::1%eth0]:8080",
        "kdp",  # kdp's own commands on the unix socket
        "plugin-x7f2p:8080",  # a pod
        "plugin.kube-system.svc:8080",
        "plugin.kube-system.svc.cluster.local.:8080",
        "node-0.example.com:8080",  # the node itself
        os.uname().nodename,
    ],
)
def test_an_address_and_a_name_that_no_stranger_owns(host: str) -> None:
    assert is_familiar(host, "Node-0.example.com")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "node-0.example.com.evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.svc.example",
        "evilsvc.cluster.localx.example",
        "evil.local",  # anybody on a laptop's network answers for it
        "[evil.example]",
        "[::1]evil.example",
        "[::1",
        "localhost:evil.example",
        "localhost, evil.example",
        "localhost evil.example",
        "1.2.3.4.5",
        "1.2.3",
        "\0.\0",
    ],
)
def test_a_name_that_a_stranger_may_own(host: str) -> None:
    assert not is_familiar(host, "node-0.example.com")
    assert not is_familiar(host)
