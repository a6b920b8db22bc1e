"""The pods API's watch where there is no socket of it, and what it reads of pods; tests/integration has the rest."""

from __future__ import annotations

import contextlib
from pathlib import Path

import anyio
from hypothesis import given
from hypothesis import strategies as st
from tests.nobody import as_nobody

from kdp.kubelet.podsapi import PodsWatch, _told_of
from kdp.proto import pods_v1alpha1_pb2 as pb
from kdp.testing import Container, Pod
from kdp_testkit.devicemanager.nodeapi import encode_pod


async def test_a_closed_directory_ended_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0)
    watch = PodsWatch(tmp_path / "closed/below/kubelet.sock")
    with as_nobody(), anyio.move_on_after(0.05) as waited:
        await watch.run(lambda: True)
    assert (waited.cancelled_caught, watch.is_synced) == (True, False)


POD = Pod(name="one", containers=[Container("main", {"a/b": 2})])


def test_a_pods_names_uid_and_phase_are_read() -> None:
    assert _told_of(encode_pod(POD, "Running")) == (("default", "one"), POD.uid, "Running")
    assert _told_of(b"") == (("", ""), "", "")


@given(st.binary(max_size=64) | st.binary(max_size=8).map(lambda more: encode_pod(POD, "Running")[:-3] + more))
def test_rubbish_is_refused_by_the_errors_that_the_watch_expects(message: bytes) -> None:
    with contextlib.suppress(IndexError, KeyError):
        _told_of(message)


def test_pods_that_have_ended_are_not_running(tmp_path: Path) -> None:
    watch = PodsWatch(tmp_path / "none")
    watch.is_synced = True

    def take(kind: pb.EventType.ValueType, pod: Pod, phase: str) -> bool:
        """Whether that is told."""
        version = watch.changes.version
        watch._take(pb.WatchPodsEvent(type=kind, pod=encode_pod(pod, phase)))
        return watch.changes.version != version

    again = Pod(name="one", uid="another", containers=POD.containers)
    key = ("default", "one")
    assert not take(pb.ADDED, POD, "Pending")
    assert not take(pb.MODIFIED, POD, "Running")
    assert watch.running == {key: POD.uid}
    assert take(pb.MODIFIED, POD, "Failed")
    assert watch.running == {}
    assert not take(pb.ADDED, again, "Pending")  # under the same name, before the other is deleted
    assert take(pb.DELETED, POD, "")
    assert watch.running == {key: again.uid}
