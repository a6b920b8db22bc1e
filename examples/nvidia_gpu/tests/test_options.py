"""What an admin can get wrong: one sentence each, and nothing happens before it."""

from __future__ import annotations

from typing import Any

import pytest

import kdp
import kdp.hardware
from kdp_nvidia_gpu import NvidiaGpu


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strategies": []}, "strategies: must name at least one of envvar, volume-mounts, device-nodes and cdi"),
        (
            {"strategies": ["envvar", "volume-mounts"]},
            (
                "strategies=envvar,volume-mounts: contradict each other, since both say in NVIDIA_VISIBLE_DEVICES "
                "what a container gets, and each something else; choose one"
            ),
        ),
        ({"mig_profiles": ["1g.10gb"]}, "mig_profiles=1g.10gb: contradicts mig=none; set mig=mixed or mig=single"),
        (
            {"strategies": ["cdi"], "cdi_dirs": ["etc/cdi"]},
            "cdi_dirs=etc/cdi: must be an absolute path without '..'; for example /run/nvidia/driver",
        ),
        (
            {"strategies": ["cdi"], "cdi_dirs": []},
            "cdi_dirs: must name at least one directory; for example /etc/cdi,/var/run/cdi",
        ),
        ({"mps": 49}, "mps=49: must be 0 (off) or the 2 to 48 containers that share a GPU"),
        (
            {"imex_channels": [-1]},
            "imex_channels: -1 must be the number of a channel, 0 to 1048575; for example 0",
        ),
        ({"hold_down": 0.0}, "hold_down=0: must be a number of seconds above 0, or none; for example 60"),
        (
            {"strategies": ["device-nodes", "cdi"], "features": ["gdrcopy", "gds"]},
            (
                "features=gdrcopy,gds: NVIDIA's runtime brings them, and strategies=device-nodes,cdi does not use it; "
                "add envvar or volume-mounts, or remove features"
            ),
        ),
        (
            {"dev_root": "/a/../b"},
            "dev_root=/a/../b: must be an absolute path without '..'; for example /run/nvidia/driver",
        ),
        (
            {"xids": ["79"]},
            (
                "xids: '79' must be CODE=ignore, CODE=fatal or CODE=condition, CODE a number or 'all'; "
                "for example 63=ignore"
            ),
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        NvidiaGpu(kdp.hardware.Host(), **options)
    assert str(caught.value) == sentence
