"""Pods as far as their ResourceClaims are concerned, and how they fail.

Frozen values. The scheduler's work (allocation, reservation) is the test's own: see `kdp_testkit.dra.objects`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import attrs

_numbers = itertools.count(1)


def _as_map(claims: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(claims))


def _as_pairs(claims: Iterable[str | tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((claim, "") if isinstance(claim, str) else claim for claim in claims)


@attrs.frozen
class DraContainer:
    """One container.

    Attributes:
        name: Its name.
        claims: What it uses: the pod's names of claims, each with a request, or "" for all of them.
    """

    name: str = "main"
    claims: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_as_pairs)


# mypy does not see through the classes themselves as converters.
def _as_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def _as_containers(containers: Iterable[DraContainer]) -> tuple[DraContainer, ...]:
    return tuple(containers)


@attrs.frozen(kw_only=True)
class DraPod:
    """One pod.

    Attributes:
        claims: The pod's names of its claims, each with the name of the ResourceClaim.
        templates: Which of them were made of a template, for this pod alone.
        containers: Its containers; by default one that uses all claims.
        name: Its name; made up if it is not given.
        namespace: Its namespace.
        uid: What the kubelet knows it by; made of the name if it is not given.
    """

    claims: Mapping[str, str] = attrs.field(converter=_as_map)
    templates: frozenset[str] = attrs.field(default=frozenset(), converter=_as_names)
    containers: tuple[DraContainer, ...] = attrs.field(
        default=attrs.Factory(lambda self: (DraContainer("main", tuple(self.claims)),), takes_self=True),
        converter=_as_containers,
    )
    name: str = attrs.field(factory=lambda: f"pod-{next(_numbers)}")
    namespace: str = "default"
    uid: str = attrs.field(default=attrs.Factory(lambda self: f"uid-{self.name}", takes_self=True))


class PodStartError(Exception):
    """The pod's sandbox cannot be made yet: the text of the event ``FailedPrepareDynamicResources``.

    The kubelet tries again at the pod's next sync.
    """


class PodStopError(Exception):
    """The pod stays Terminating: its claims could not be unprepared. The kubelet tries again, for ever."""
