"""Pods, their sums, and the merging of replies."""

from __future__ import annotations

import pytest

from kdp.testing import Container, ContainerReply, DeviceSpec, MountSpec, Pod, ScenarioError

W, G = "example.com/widget", "example.com/gadget"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Pod(containers=[], name="p"), "pod 'p' has no container"),
        (lambda: Pod(containers=[Container("a"), Container("a")], name="p"), "two containers have one name: a, a"),
        (
            lambda: Pod(containers=[Container("a", restartable=True)], name="p"),
            "only an init container can be restartable",
        ),
        (lambda: Container("A"), "container 'A': the API server takes names of lower-case letters"),
        (lambda: Pod(containers=[Container("a")], namespace="a.b"), "namespace 'a.b': the API server takes names"),
        (lambda: Container("a", {"cpu": 1}), "'cpu' is no extended resource name"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(ScenarioError, match=sentence):
        make()


def test_requests_are_the_larger_of_both_phases_with_sidecars_in_both() -> None:
    pod = Pod(
        init_containers=[
            Container("first", {W: 3}),
            Container("sidecar", {W: 1}, restartable=True),
            Container("second", {W: 4, G: 1}),
        ],
        containers=[Container("a", {W: 1}), Container("b", {W: 2, G: 2})],
    )
    assert pod.requests() == {W: 5, G: 2}


def test_the_first_reply_wins_where_two_resources_answer() -> None:
    first = ContainerReply(
        envs={"A": "1"},
        mounts=[MountSpec("/m", "/x")],
        devices=[DeviceSpec("/d", "/x", "rw")],
        annotations={"k": "1"},
        cdi_devices=["v/c=1", "v/c=2"],
    )
    second = ContainerReply(
        envs={"A": "2", "B": "2"},
        mounts=[MountSpec("/m", "/y"), MountSpec("/n", "/y")],
        devices=[DeviceSpec("/d", "/y", "r")],
        annotations={"k": "2"},
        cdi_devices=["v/c=2", "v/c=3"],
    )
    assert ContainerReply.merge([first, second]) == ContainerReply(
        envs={"A": "1", "B": "2"},
        mounts=[MountSpec("/m", "/x"), MountSpec("/n", "/y")],
        devices=[DeviceSpec("/d", "/x", "rw")],
        annotations={"k": "1"},
        cdi_devices=["v/c=1", "v/c=2", "v/c=3"],
    )
