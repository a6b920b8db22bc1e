"""What the log says of what happens between two discoveries."""

from __future__ import annotations

import time

import attrs
import pytest

from kdp_nvidia_gpu.fake import NvmlState

from .support import Make, opened, watching

GPU = NvmlState.uuid


@pytest.mark.usefixtures("looks_often")
def test_what_lasts_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Waiting fails each second, and each time all GPUs are asked for their events anew."""
    failing = (("nvmlEventSetWait_v2", 999, -1), ("nvmlDeviceRegisterEvents", 3, 1))
    _, backend = make(attrs.evolve(NvmlState(), failing=failing))
    with opened(backend):
        backend.discover()
        with watching(backend) as report:
            deadline = time.monotonic() + 20
            while report.rescans < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert report.rescans >= 3
    assert caplog.messages == [
        f"{GPU(1)}: NVML reports no events of it (Not Supported); its errors are not seen, only its loss",
        "waiting for events failed: wait_for_event failed: Unknown Error (NVML error 999); looking at all GPUs instead",
    ]


def test_an_error_that_the_admin_ignores_is_not_said_to_be_an_applications(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kdp_nvidia_gpu")
    node, backend = make(xids=["79=ignore"])
    with opened(backend):
        backend.discover()
        with watching(backend) as report:
            for code in (79, 31, 48):
                node.event(f"xid 0 {code}")
            report.until(1)  # what comes last is seen, so the others have been
    assert caplog.messages[:2] == [
        f"{GPU(0)}: XID 79: GPU has fallen off the bus; ignored, as the option xids says",
        f"{GPU(0)}: XID 31: GPU memory page fault; an application's error, the GPU is well",
    ]
