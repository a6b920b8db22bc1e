"""Container images that a test packs itself: a folder as one layer of an OCI archive, as `ctr images import` reads it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["busybox", "pack"]

_OCI = "application/vnd.oci.image"


def pack(archive: Path, name: str, files: Mapping[str, bytes | Path], *, command: Sequence[str]) -> None:
    """Write an image.

    Args:
        archive: The file to write.
        name: The image's name with its tag.
        files: What is in it: path -> content, or a file of the machine; all may be executed. A path that ends with a
            slash is an empty folder.
        command: What a container of it runs by default.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.strip("/"))
            entry.mode = 0o755
            if path.endswith("/"):
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
                continue
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    tarred = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tarred).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{_OCI}.config.v1+json"),
        "layers": [blob(tarred, f"{_OCI}.layer.v1.tar")],
    }
    entry_of_index = blob(json.dumps(manifest).encode(), f"{_OCI}.manifest.v1+json")
    entry_of_index["annotations"] = {"io.containerd.image.name": name}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry_of_index]}
    blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    blobs["index.json"] = json.dumps(index).encode()
    with tarfile.open(archive, "w") as tar:
        for path, data in blobs.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def busybox(archive: Path, name: str, binary: Path, *, command: Sequence[str]) -> None:
    """Write an image with a static busybox and nothing else."""
    names = ("sh", "ls", "cat", "env", "sleep", "echo", "stat", "dd", "true")
    files: dict[str, bytes | Path] = {"bin/": b"", "dev/": b"", "proc/": b"", "sys/": b"", "tmp/": b"", "etc/": b""}
    files["bin/busybox"] = binary
    files |= {
        f"bin/{each}": f'#!/bin/busybox sh\nexec /bin/busybox {each} "$@"\n'.encode() for each in names if each != "sh"
    }
    files["bin/sh"] = binary  # called by this name, it is a shell
    pack(archive, name, files, command=command)
