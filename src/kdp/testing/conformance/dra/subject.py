"""The driver under test, as the checks see it: something that can be started on a node, asked to stop, and killed."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kdp.kubelet import KubeletPaths

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from ..subject import Instance

__all__ = ["DraNode", "DraSubject"]


@attrs.frozen(kw_only=True)
class DraNode:
    """Where a driver finds itself.

    Attributes:
        name: The node's name, as the API server has it.
        paths: The kubelet's directories.
        kubeconfig: How to reach the API server.
        cdi: Where a container runtime looks for specs.
        state: A directory for what the driver keeps besides.
    """

    name: str
    paths: KubeletPaths
    kubeconfig: Path
    cdi: Path
    state: Path


class DraSubject(abc.ABC):
    """The driver under test."""

    @abc.abstractmethod
    def start(self, node: DraNode, wake: Callable[[], None]) -> AbstractAsyncContextManager[Instance]:
        """Start an instance; it is gone, with everything that it started, when the context is left.

        Args:
            node: Where it is.
            wake: Called when the instance has ended.
        """
