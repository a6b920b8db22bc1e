"""Generate the Python code of kdp.proto from its .proto files, under kdp's private descriptor pool.

Run it with the interpreter of the environment that ``requirements/proto.txt`` describes (``make proto`` does); it
needs nothing of kdp. The output is a function of the .proto files and of the pinned tools alone, so that a second run
changes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

# protoc's text -> ours. Each must occur exactly once: a new generator that writes something else is noticed here and
# not by the user whose process holds two copies of the kubelet's protocols.
REPLACEMENTS = (
    (
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        "from kdp.proto import _pool\n",
    ),
    ("from google.protobuf import symbol_database as _symbol_database\n", ""),
    ("_sym_db = _symbol_database.Default()\n", ""),
    ("_descriptor_pool.Default()", "_pool.POOL"),
    ("from google.protobuf.internal import builder as _builder\n", ""),
    ("_builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, _globals)\n", ""),
    ("_builder.BuildTopDescriptorsAndMessages(", "_pool.build("),
)


def under_private_pool(code: str, name: str) -> str:
    """Rewrite one generated module to use kdp's pool.

    Args:
        code: The module as protoc wrote it.
        name: Its name, for the error.

    Returns:
        The same module, with its descriptors in ``kdp.proto._pool.POOL``.

    Raises:
        SystemExit: The generator wrote something that these replacements do not know.
    """
    for old, new in REPLACEMENTS:
        if code.count(old) != 1:
            raise SystemExit(f"{name}: expected {old.strip()!r} once, found it {code.count(old)} times")
        code = code.replace(old, new)
    return code


def generate(out: Path) -> list[Path]:
    """Generate all modules below a folder.

    Args:
        out: The folder that stands for ``src``.

    Returns:
        The files written, sorted.
    """
    protos = sorted(path.relative_to(SOURCES) for path in SOURCES.glob("kdp/proto/*.proto"))
    out.mkdir(parents=True, exist_ok=True)
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I.",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--python_out={out.resolve()}",
            f"--mypy_out=quiet:{out.resolve()}",
            *map(str, protos),
        ],
        cwd=SOURCES,
        check=True,
    )
    written: list[Path] = []
    for proto in protos:
        module = out / proto.with_name(f"{proto.stem}_pb2.py")
        module.write_text(under_private_pool(module.read_text("utf-8"), str(module)), "utf-8")
        written += [module, module.with_suffix(".pyi")]
    return sorted(written)


def main() -> None:
    """Generate into ``src``, or into the folder given by ``--out``."""
    parser = argparse.ArgumentParser(description="Generate the Python code of kdp.proto.")
    parser.add_argument("--out", type=Path, default=SOURCES, help="the folder that stands for src")
    for path in generate(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
