"""ResourceClaims as the real scheduler writes them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdp.model.claims import Claim

__all__ = ["DRIVER", "POOL", "claim", "claim_object", "entry", "result"]

DRIVER = "widget.example.com"
POOL = "node0"
Object = dict[str, Any]


def claim(number: int = 0) -> Claim:
    """Return the names of a claim."""
    return Claim(namespace="default", name=f"claim-{number}", uid=f"00000000-0000-4000-8000-{number:012}")


def result(device: str, request: str = "r", *, driver: str = DRIVER, pool: str = POOL, **more: Any) -> Object:
    """Return a result of an allocation; ``share`` is its share's id, ``admin`` means admin access."""
    found: Object = {"request": request, "driver": driver, "pool": pool, "device": device}
    if share := more.pop("share", None):
        found["shareID"] = share
    if more.pop("admin", False):
        found["adminAccess"] = True
    return {**found, **more}


def entry(parameters: Any, *requests: str, source: str = "FromClaim", driver: str = DRIVER) -> Object:
    """Return a configuration of an allocation."""
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim_object(names: Claim, results: Sequence[Object] | None, *config: Object) -> Object:
    """Return a claim; ``results`` None: it is not allocated."""
    status: Object = {}
    if results is not None:
        status["allocation"] = {"devices": {"results": list(results), "config": list(config)}}
    metadata = {"namespace": names.namespace, "name": names.name, "uid": names.uid}
    return {"metadata": metadata, "spec": {}, "status": status}
