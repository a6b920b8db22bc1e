"""The examples as the conformance tests judge them.

``python -m tests.conformance.examples EXAMPLE PROFILE ROUTE IDS [SCALE]`` judges one and prints the report as JSON: for
tests that judge many, each in a process of its own. IDS is ``quick``, ``waiting`` for those that quick leaves out, or
numbers with commas between; SCALE shortens the times and numbers that the scenarios name.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio

import kdp
import kdp.hardware
import kdp_example_generic
import kdp_example_hwrng
import kdp_example_minimal
import kdp_fpga
import kdp_nvidia_gpu
import kdp_rdma
from kdp.testing import SysfsTree
from kdp_nvidia_gpu.fake import FakeNode, GpuState, NvmlState, compile_library
from kdp_testkit.conformance import CHECKS, ConformanceReport, run_checks
from kdp_testkit.conformance.checks import Route
from kdp_testkit.conformance.deviceplugin.backend import BackendSubject
from kdp_testkit.conformance.deviceplugin.scene import MakeKubelet, simulated

from .twice import judged

__all__ = ["EXAMPLES", "MISSING", "PROFILES", "ROUTES", "WAITING", "judge_beside_others", "listed"]

PROFILES: Final = ("k134", "k136", "k137")
ROUTES: Final[tuple[Route, ...]] = ("kubelet", "watcher")
BOARDS: Final = Path(__file__).parents[2] / "examples/fpga/src/kdp_fpga/recorded_node.tar.gz"
ADAPTERS: Final = Path(__file__).parents[2] / "examples/rdma/src/kdp_rdma/recorded_node.tar.gz"
HAS_FUSE: Final = Path("/dev/fuse").exists()
RANDOM: Final = Path("/dev/hwrng")

NARROW: Final = 3
"""Number of checks at the same time if several processes judge: all share the kernel's 128 inotify instances."""

WAITING: Final = tuple(check.id for check in CHECKS if check.waits)


def _why_not_random() -> str | None:
    """Return why examples/hwrng cannot be judged here; None: it can."""
    try:
        with RANDOM.open("rb", buffering=0) as generator:
            return None if generator.read(1) else f"{RANDOM} gives nothing"
    except OSError as error:
        return f"{RANDOM} cannot be read ({error.strerror}), which examples/hwrng serves"


def minimal(_directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/minimal."""
    return kdp_example_minimal.Fuse


def generic(directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/generic with a configuration in this directory."""
    config = directory / "config.yaml"
    config.write_text(
        "resources: [{name: example.com/null, groups: [{count: 3, paths: [{path: /dev/null}, "
        "{path: /dev/zero, mountPath: /dev/nothing}]}]}]"
    )
    return partial(kdp_example_generic.Generic, config, kdp.hardware.Host())


def nvidia_gpu(directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/nvidia_gpu on a node with GPUs that are not there."""
    state = NvmlState(gpus=(GpuState(), GpuState(numa_node=1), GpuState()))
    node = FakeNode(directory / ROOTS["nvidia-gpu"], library=compile_library(directory), state=state)
    os.environ["FAKE_NVML"] = str(node.file)  # the library that a process has loaded first is the one it keeps
    return partial(kdp_nvidia_gpu.NvidiaGpu, node.host, strategies=["device-nodes"])


def fpga(directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/fpga on a node that was recorded: two boards with three ports."""
    node = SysfsTree(directory / ROOTS["fpga"], snapshot=BOARDS)
    return partial(kdp_fpga.Fpga, node.host)


def rdma(directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/rdma on the recorded adapters of another kernel."""
    node = SysfsTree(directory / ROOTS["rdma"], snapshot=ADAPTERS)
    return partial(kdp_rdma.Rdma, node.host, mode="hca", slots=2)


def hwrng(_directory: Path) -> Callable[[], kdp.DeviceBackend]:
    """Make examples/hwrng on this machine's own generator, which it reads in two hooks."""
    return partial(kdp_example_hwrng.Hwrng, kdp.hardware.Host(), count=3)


EXAMPLES: Final[dict[str, Callable[[Path], Callable[[], kdp.DeviceBackend]]]] = {
    "minimal": minimal,
    "generic": generic,
    "nvidia-gpu": nvidia_gpu,
    "fpga": fpga,
    "rdma": rdma,
    "hwrng": hwrng,
}

ROOTS: Final = {"nvidia-gpu": "gpus", "fpga": "node", "rdma": "node"}
"""Examples whose node is a directory, and which one."""

OWN: Final = {"nvidia-gpu": {51: "the plugin offers GetPreferredAllocation"}}
"""Checks that are about what an example is not."""

MISSING: Final = {
    "minimal": None if HAS_FUSE else "this kernel has no /dev/fuse, which examples/minimal serves",
    "hwrng": _why_not_random(),
    "nvidia-gpu": None if shutil.which("gcc") else "gcc is missing, which makes the library of examples/nvidia_gpu",
}
"""Why an example cannot be judged on this machine; None: it can."""


def _subject(example: str, route: Route, directory: Path) -> BackendSubject:
    root = directory / ROOTS[example] if example in ROOTS else "/"
    return BackendSubject(EXAMPLES[example](directory), registration=route, host_root=root)


async def judge_beside_others(
    example: str,
    profile: str,
    route: Route,
    ids: str,
    *,
    kubelet: MakeKubelet = simulated,
    scale: float = 1.0,
) -> dict[str, object]:
    """Judge an example in a process that has the machine not for itself, and return the report as JSON.

    What fails is judged once more with nothing beside it, and ``again`` names it.
    """
    only = {"quick": None, "waiting": WAITING}[ids] if ids.isalpha() else tuple(map(int, ids.split(",")))
    with tempfile.TemporaryDirectory(prefix="kdp-") as directory:
        subject = _subject(example, route, Path(directory))

        async def run(failed: tuple[int, ...] | None) -> ConformanceReport:
            subject.width = 1 if failed else NARROW
            return await run_checks(
                subject,
                profile=profile,
                only=failed or only,
                quick=only is None,
                cdi_dirs=[directory],
                kubelet=kubelet,
                scale=scale,
            )

        report, again = await judged(run)
    return {**report.as_json(), "left_out": report.left_out, "again": again}


def listed(route: Route, example: str = "") -> dict[int, str]:
    """Return the checks that may be not applicable over a route, with the reasons; for an example also its own."""
    table = tomllib.loads(Path(__file__).with_name("not_applicable.toml").read_text())[route]
    found: dict[int, str] = {}
    for ids, reason in table.items():
        first, _, last = ids.partition("-")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1), reason)
    return found | (OWN.get(example) or {})


def main() -> None:
    """Judge what the command line says."""
    example, profile, route, ids, *scale = sys.argv[1:]
    judge_it = partial(judge_beside_others, scale=float(scale[0] if scale else 1))
    json.dump(anyio.run(judge_it, example, profile, cast("Route", route), ids), sys.stdout)


if __name__ == "__main__":
    main()
