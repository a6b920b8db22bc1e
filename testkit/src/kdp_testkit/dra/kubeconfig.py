"""The kubeconfig with which a driver finds the simulated API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for the server at this address into a folder, and return its path."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "simulated", "cluster": {"server": url}}],
                "users": [{"name": "driver", "user": {}}],
                "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "driver"}}],
                "current-context": "simulated",
            }
        )
    )
    return path
