"""`EventRecorder`: what a cluster's admin should know of a driver, as Kubernetes Events of its node; each once.

An Event is a courtesy: the log, the probe and the driver's status say the same, so that it is not tried again.

Source: ``k8s.io/kubernetes`` ``pkg/apis/core/validation/events.go``; events of a Node are in the namespace ``default``,
and have the node's name for its UID, as those of the kubelet.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from ..errors import printable, sentence
from .api import ApiError

if TYPE_CHECKING:
    from .api import ClusterApi

logger = logging.getLogger(__name__)

MOST_TEXT: Final = 1024
"""Bytes of an Event's message."""

MOST_EVENTS: Final = 100
"""So many Events are the most of one process: problems whose texts always differ must not fill the cluster."""


@final
class EventRecorder:
    """Creates Events for one driver on one node."""

    def __init__(self, api: ClusterApi, driver: str, node: str) -> None:
        self._api = api
        self._driver = driver
        self._node = node
        self._created: set[tuple[str, str]] = set()
        self._is_refused = False

    async def warn(self, reason: str, message: str) -> None:
        """Create an Event of type Warning, unless there was the same before. Raises nothing.

        The reason is in CamelCase.
        """
        if (reason, message) in self._created or len(self._created) >= MOST_EVENTS:
            return
        self._created.add((reason, message))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._node}.", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": "Warning",
            "reason": reason,
            "message": printable(message, MOST_TEXT).encode()[:MOST_TEXT].decode(errors="ignore"),
            "source": {"component": self._driver, "host": self._node},
            "reportingComponent": self._driver,
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create_event(event)
        except ApiError as error:
            if not self._is_refused:
                logger.warning(
                    "%s: no Event is made of what is wrong, as it could not be created: %s",
                    self._driver,
                    sentence(error),
                )
            self._is_refused = True
        except Exception:
            logger.exception("%s: no Event is made of %s", self._driver, reason)
        else:
            self._is_refused = False
