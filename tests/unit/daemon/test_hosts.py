"""By which names a page that names pods may be asked for."""

from __future__ import annotations

import pytest

from kdp.daemon.listener import is_familiar


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost.:8080",
        "[fe80::1%eth0]:8080",
        "plugin.kube-system.svc.cluster.local.:8080",
        "node-0.example.com:8080",
    ],
)
def test_an_address_and_a_name_that_no_stranger_owns(host: str) -> None:
    assert is_familiar(host, "Node-0.example.com")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "evil.svc.example",
        "[::1]evil.example",
        "localhost, evil.example",
        "\0.\0",
    ],
)
def test_a_name_that_a_stranger_may_own(host: str) -> None:
    assert not is_familiar(host, "node-0.example.com")
    assert not is_familiar(host)
