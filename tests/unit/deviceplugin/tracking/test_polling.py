"""The pod-resources API is asked also where its client could not be loaded at first: that takes a descriptor."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kdp.concurrency.observable import Observable
from kdp.deviceplugin.options import Pace
from kdp.deviceplugin.tracking import polling
from kdp.deviceplugin.tracking.polling import PodResourcesPoller, Unanswered
from kdp.kubelet import KubeletPaths
from kdp.kubelet.list_guard import ListGuard


@pytest.fixture
def poller(tmp_path: Path) -> PodResourcesPoller:
    paths = KubeletPaths.simulated(tmp_path)
    return PodResourcesPoller(paths, Pace(), ListGuard(paths.pod_resources_dir))


async def test_a_process_without_descriptors_ended_because_the_pods_api_was_not_loaded(
    poller: PodResourcesPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "LOAD_AGAIN", 0.01)
    wanted = 0

    def is_wanted() -> bool:
        nonlocal wanted
        wanted += 1
        return True

    async with anyio.create_task_group() as tasks:
        with monkeypatch.context() as patch, anyio.fail_after(60):
            patch.setitem(sys.modules, "kdp.kubelet.podsapi", None)
            tasks.start_soon(poller.watch_pods, is_wanted, Observable(None))
            while wanted < 3:
                await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            while poller._pods is None:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_process_without_descriptors_ended_because_pod_resources_was_not_loaded(
    poller: PodResourcesPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kdp.kubelet.podresources", None)
        refused = await poller.ask(["a/b"], wants_list=True, wants_settled_list=False, wants_allocatable=False)
    assert isinstance(refused, Unanswered)
    assert refused.is_news
    asked = await poller.ask(["a/b"], wants_list=True, wants_settled_list=False, wants_allocatable=False)
    assert isinstance(asked, Unanswered)
    assert asked.problem.startswith("there is no ")
