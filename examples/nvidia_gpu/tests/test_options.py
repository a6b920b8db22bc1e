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
        ({"strategies": ["cdi", "cdi"]}, "strategies=cdi,cdi: one is there twice; name each once"),
        (
            {"strategies": ["envvar", "volume-mounts"]},
            (
                "strategies=envvar,volume-mounts: contradict each other, since both say in NVIDIA_VISIBLE_DEVICES "
                "what a container gets, and each something else; choose one"
            ),
        ),
        ({"mig_profiles": ["1g.10gb"]}, "mig_profiles=1g.10gb: contradicts mig=none; set mig=mixed or mig=single"),
        (
            {"mig": "single", "mig_profiles": ["1g.10gb", "2g.20gb"]},
            "mig_profiles=1g.10gb,2g.20gb: mig=single serves one profile; name one",
        ),
        (
            {"mig": "mixed", "mig_profiles": ["small"]},
            "mig_profiles: 'small' must be a profile as nvidia-smi names it; valid is 1g.10gb",
        ),
        ({"mps": 1}, "mps=1: must be 0 (off) or the 2 to 48 containers that share a GPU"),
        ({"mps": 49}, "mps=49: must be 0 (off) or the 2 to 48 containers that share a GPU"),
        ({"mps": 4, "mig": "mixed"}, "mps=4: contradicts mig=mixed; MPS shares whole GPUs here, so set mig=none"),
        (
            {"mps": 4, "require_idle": True},
            "mps=4: contradicts require_idle: the MPS server itself is a process on the GPU",
        ),
        ({"imex_channels": [0, 0]}, "imex_channels=0,0: one is there twice; name each once"),
        (
            {"imex_channels": [-1]},
            "imex_channels: -1 must be the number of a channel, 0 to 1048575; valid is 0",
        ),
        ({"imex_required": True}, "imex_required: no channel is required; set imex_channels=0, or remove it"),
        ({"hold_down": 0.0}, "hold_down=0: must be a number of seconds above 0, or none; valid is 60"),
        (
            {"driver_root": "nvidia"},
            "driver_root=nvidia: must be an absolute path without '..'; valid is /run/nvidia/driver",
        ),
        (
            {"dev_root": "/a/../b"},
            "dev_root=/a/../b: must be an absolute path without '..'; valid is /run/nvidia/driver",
        ),
        (
            {"strategies": ["cdi"], "cdi_kind": "nonsense"},
            (
                "cdi_kind=nonsense: CDI kind 'nonsense': must be vendor/class, each starting with a letter, ending in "
                "a letter or digit, of letters, digits, '-', '_', '.'; valid is for example 'example.com/widget'"
            ),
        ),
        (
            {"xids": ["79"]},
            "xids: '79' must be CODE=ignore, CODE=fatal or CODE=condition, CODE a number or 'all'; valid is 63=ignore",
        ),
        ({"xids": ["63=ignore", "63=fatal"]}, "xids: 63 is there twice; say once what it means"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kdp.ConfigurationError) as caught:
        NvidiaGpu(kdp.hardware.Host(), **options)
    assert str(caught.value) == sentence
