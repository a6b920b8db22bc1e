"""A runtime around runc that does what NVIDIA's does with a container, as far as a plugin can tell the two apart.

For each container that is created it reads which GPUs the container is to get: from ``NVIDIA_VISIBLE_DEVICES``, or,
where that names the folder of the volume-mounts strategy, from what is mounted below it. Those GPUs' device nodes are
put into the container. ``void`` and ``none``, or no such variable, leave it as it is. The file ``gpus.json`` beside
this program says which node a GPU has; the nodes are those of /dev/fuse, since there is no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = "/var/run/nvidia-container-devices"
SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def wanted(spec: dict[str, Any]) -> list[str]:
    """Return the GPUs that a container is to get."""
    environment = dict(text.partition("=")[::2] for text in spec["process"].get("env", ()))
    said = environment.get("NVIDIA_VISIBLE_DEVICES", "void")
    if said == FOLDER:
        places = (Path(mount["destination"]) for mount in spec.get("mounts", ()))
        return sorted(place.name for place in places if str(place.parent) == FOLDER)
    return [] if said in ("", "void", "none") else said.split(",")


def change(bundle: Path, nodes: dict[str, str]) -> None:
    """Put the GPUs into a container that is about to be made."""
    file = bundle / "config.json"
    spec: dict[str, Any] = json.loads(file.read_text())
    gpus = wanted(spec)
    if not gpus:
        return
    number = os.stat("/dev/fuse").st_rdev
    which = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
    linux = spec["linux"]
    for path in (*SHARED, *(nodes[gpu] for gpu in gpus)):
        linux.setdefault("devices", []).append({"path": path, **which, "fileMode": 0o666})
    linux["resources"].setdefault("devices", []).append({"allow": True, **which, "access": "rw"})
    file.write_text(json.dumps(spec))


def main() -> None:
    """Be called as runc is, and become runc."""
    arguments = sys.argv[1:]
    if "create" in arguments:
        change(
            Path(arguments[arguments.index("--bundle") + 1]),
            json.loads(Path(__file__).with_name("gpus.json").read_text()),
        )
    os.execvp("runc", ["runc", *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
