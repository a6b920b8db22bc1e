"""What the API server has of Dynamic Resource Allocation, asked with the extra ``kube``, or the reason why not.

It takes 30 MiB, so in a container with less memory nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ..errors import ConfigurationError, KdpError, message_of, sentence

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
        classes: The DeviceClasses.
        claims: The ResourceClaims of all namespaces.
    """

    problem: str = ""
    classes: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Mapping[str, Any]] = ()


def ask(kubeconfig: Path | None) -> ClusterFacts:
    """Ask the API server; it blocks for `PATIENCE` at most."""
    import asyncio

    try:
        from ..cluster.client import KubeApi
    except ConfigurationError as error:  # without the extra
        return ClusterFacts(problem=message_of(error))

    async def both() -> ClusterFacts:
        async with asyncio.timeout(PATIENCE), KubeApi(kubeconfig, deadline=PATIENCE) as api:
            return ClusterFacts(classes=await api.objects("deviceclasses"), claims=await api.objects("resourceclaims"))

    try:
        return asyncio.run(both())
    except TimeoutError:
        return ClusterFacts(problem=f"the API server did not answer within {PATIENCE:g} s")
    except KdpError as error:
        return ClusterFacts(problem=sentence(error))
