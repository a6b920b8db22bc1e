"""What the API server has of Dynamic Resource Allocation, asked with the extra ``kube``, or the reason why not.

It takes 30 MiB, so in a container with less memory nobody is asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...cluster.api import ApiError
from ...errors import ConfigurationError, KdpError, message_of, sentence

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE: Final = 2.0
"""Seconds for both lists."""


@final
@attrs.frozen(kw_only=True)
class ClusterFacts:
    """What the API server has, or why that is not known.

    Attributes:
        problem: Why nothing is known; empty: it was asked.
        is_impossible: Whether this process cannot ask: it has no client, no account, or no right.
        classes: The DeviceClasses.
        claims: The ResourceClaims of all namespaces.
        slices: The ResourceSlices of the node. Empty on the node itself.
        waiting: The pods that have no node yet. Empty on the node itself.
    """

    problem: str = ""
    is_impossible: bool = False
    classes: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    slices: Sequence[Mapping[str, Any]] = ()
    waiting: Sequence[Mapping[str, Any]] = ()


def _is_configured() -> bool:
    """Return whether there may be an account. It is looked at first, because loading the client takes a second."""
    files = ("/var/run/secrets/kubernetes.io/serviceaccount/token", os.path.expanduser("~/.kube/config"))
    return bool(os.environ.get("KUBECONFIG")) or any(map(os.path.exists, files))


def ask(kubeconfig: Path | None) -> ClusterFacts:
    """Ask the API server; it blocks for `PATIENCE` at most."""
    if kubeconfig is None and not _is_configured():
        return ClusterFacts(problem="there is no account of a pod, and no kubeconfig file", is_impossible=True)
    import asyncio

    try:
        from ...cluster.client import KubeApi
    except ConfigurationError as error:  # without the extra
        return ClusterFacts(problem=message_of(error), is_impossible=True)

    async def both() -> ClusterFacts:
        async with asyncio.timeout(PATIENCE), KubeApi(kubeconfig, deadline=PATIENCE) as api:
            return ClusterFacts(classes=await api.objects("deviceclasses"), claims=await api.objects("resourceclaims"))

    try:
        return asyncio.run(both())
    except TimeoutError:
        return ClusterFacts(problem=f"the API server did not answer within {PATIENCE:g} s")
    except KdpError as error:
        is_refused = isinstance(error, ApiError) and error.status in (401, 403)
        return ClusterFacts(problem=sentence(error), is_impossible=is_refused or isinstance(error, ConfigurationError))
