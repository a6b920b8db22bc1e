"""The start-up taint of a node, which keeps pods away until the node offers the plugin's devices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from ..concurrency.backoff import Backoff
from ..errors import sentence
from .api import ApiError
from .nodes import part, taint_removal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .api import NodeApi, Object

logger = logging.getLogger(__name__)

LOOK_PAUSE: Final = 2.0
"""Seconds between two looks at the plugins and the Node."""

MOST_PAUSE: Final = 60.0
"""Seconds between two tries, at most, while the API server refuses."""


async def remove_startup_taint(
    api: NodeApi, node_name: str, key: str, offered: Callable[[], Iterable[str] | None]
) -> None:
    """Remove the taint as soon as all resources are registered and the Node offers their devices.

    A node of an autoscaler begins with the taint, so that no pod comes before the plugin. A pod that came as soon as
    the resources are registered would find none yet: the kubelet writes them into the Node some seconds later.

    Args:
        api: The API server. Its errors are logged once, and the removal is tried again.
        node_name: The node.
        key: The key of the taint.
        offered: Returns the resources that have healthy devices. `None` until all resources are registered.
    """
    is_logged = False
    backoff = Backoff(first=LOOK_PAUSE, most=MOST_PAUSE)
    while True:
        pause = LOOK_PAUSE
        try:
            if (names := offered()) is not None:
                node = await api.node(node_name)
                patch = taint_removal(node, key)
                if not patch:
                    logger.info("node %s has no taint %s; there is nothing to remove", node_name, key)
                    return
                if not missing(node, names):
                    await api.patch_node(node_name, patch)
                    logger.info("node %s: the taint %s is removed, as all resources are registered", node_name, key)
                    return
        except ApiError as error:
            # 422: the taints were changed meanwhile.
            if not is_logged and error.status != 422:
                logger.error("node %s: the taint %s stays: %s%s", node_name, key, sentence(error), _remedy(error))
                is_logged = True
            pause = LOOK_PAUSE if error.status == 422 else max(backoff.next(), error.retry_after or 0.0)
        await anyio.sleep(pause)


def missing(node: Object, resources: Iterable[str]) -> tuple[str, ...]:
    """Return the resources that the Node does not offer yet."""
    allocatable = part(node, "status", "allocatable")
    return tuple(name for name in resources if str(allocatable.get(name, "0")).strip() in ("", "0"))


def _remedy(error: ApiError) -> str:
    if error.status != 403:
        return ""
    return "; apply what kdp manifests writes with --startup-taint, or remove the taint by kubectl taint"
