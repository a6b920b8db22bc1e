"""kdp's messages live in a pool of their own, so that another library may bring the same protocols."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from kdp.proto import _pool

from .two_libraries import MODULES

CHILD = Path(__file__).with_name("two_libraries.py")
IMPLEMENTATIONS = ("upb", "python")
ORDERS = ("kdp-first", "other-first")


def copy_of(module: str, name: str) -> FileDescriptorProto:
    """Another library's copy of one of the kubelet's protocols, compiled under a name of its own."""
    ours = importlib.import_module(f"kdp.proto.{module}_pb2")
    file = FileDescriptorProto.FromString(ours.DESCRIPTOR.serialized_pb)
    file.name = name
    return file


@pytest.fixture
def other_library(tmp_path: Path) -> Path:
    """All of them in one library. Only one of them can have upstream's bare name; the clash is about what is inside."""
    names = ["api.proto", *(f"{module}/api.proto" for module in MODULES[1:])]
    files = [copy_of(module, name) for module, name in zip(MODULES, names, strict=True)]
    path = tmp_path / "other.binpb"
    path.write_bytes(FileDescriptorSet(file=files).SerializeToString())
    return path


def run(library: Path, order: str, implementation: str, mutant: str = "none") -> subprocess.CompletedProcess[str]:
    """Load both libraries in a fresh process, in which every warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(CHILD), str(library), order, mutant],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("order", "implementation"), [*zip(ORDERS, IMPLEMENTATIONS, strict=True)])
def test_another_librarys_copy_of_the_protocols_does_not_clash(
    other_library: Path, order: str, implementation: str
) -> None:
    done = run(other_library, order, implementation)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mutant", ["default-pool", "default-symbols"])
def test_what_keeps_kdp_apart_is_needed(other_library: Path, mutant: str) -> None:
    done = run(other_library, "kdp-first", "python", mutant)
    assert done.returncode != 0
    assert "v1beta1" in done.stderr


def test_every_generated_module_is_in_the_private_pool() -> None:
    for module in MODULES:
        generated = importlib.import_module(f"kdp.proto.{module}_pb2")
        assert generated.DESCRIPTOR.pool is _pool.POOL
        assert generated.DESCRIPTOR.name == f"kdp/proto/{module}.proto"


def test_the_pure_python_implementation_is_not_loaded_beside_the_c_library() -> None:
    """protobuf's own way to a pool loads it, and a plugin's start waits for that."""
    code = "import sys, kdp.deviceplugin.wire; sys.exit('google.protobuf.internal.python_message' in sys.modules)"
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False).returncode == 0
