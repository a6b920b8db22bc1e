"""All questions, in the order in which a person reads the answers: from the kubelet to the plugin's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import cdi, devices, directories, dra, kubelet, process, resources, sockets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .answers import Question
    from .node import Node

GROUPS: Final[Mapping[str, tuple[Question[Node], ...]]] = {
    "The kubelet's directory": kubelet.QUESTIONS,
    "Sockets": sockets.QUESTIONS,
    "Resources": resources.QUESTIONS,
    "Device nodes": devices.QUESTIONS,
    "CDI": cdi.QUESTIONS,
    "Dynamic Resource Allocation": dra.QUESTIONS,
    "State": directories.QUESTIONS,
    "Process": process.QUESTIONS,
}

QUESTIONS: Final[tuple[Question[Node], ...]] = tuple(question for group in GROUPS.values() for question in group)
