"""The checked-in code of kdp.proto is what its generator makes of the checked-in .proto files."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ".venv-proto"
GENERATED = ("*_pb2.py", "*_pb2.pyi")


def generated_files(folder: Path) -> dict[str, str]:
    """Every generated file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for pattern in GENERATED
        for path in (folder / "kdp").rglob(pattern)
    }


def generate(out: Path, root: Path = ROOT) -> None:
    """Run the generator in its own environment."""
    subprocess.run(
        [str(ROOT / ENVIRONMENT / "bin/python"), str(root / "scripts/proto.py"), "--out", str(out)],
        check=True,
        timeout=120,
    )


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    generate(tmp_path)
    fresh = generated_files(tmp_path)
    assert len(fresh) == 2 * len(list((ROOT / "src/kdp/proto").rglob("*.proto")))
    assert fresh == generated_files(ROOT / "src"), "run `make proto`"
