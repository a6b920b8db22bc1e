"""The steps of a claim's life: `ClaimLifecycle` asks for them one by one, `Preparer` takes them.

A step is a value. ``result = yield from Step(...)`` in a generator hands it to the caller that runs the generator, and
goes on with the result. A step that fails ends the run; nothing of the life is kept in memory.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar, final

import attrs

from ...model.claims import Claim
from ...model.devices import Device
from ...model.edits import Mount
from .cdi_specs import Rendered
from .checkpoint import Record, SavedPart
from .parameters import Parameters
from .plan import ClaimPart, ClaimPlan

_T = TypeVar("_T")


@attrs.frozen
class Step(Generic[_T]):
    """One thing to be done for a claim.

    Attributes:
        claim: The claim.
    """

    claim: Claim

    def __iter__(self) -> Generator[Step[Any], Any, _T]:
        """Hand the step to the caller that runs the life, and return its result."""
        result: _T = yield self
        return result


Run: TypeAlias = Generator[Step[Any], Any, _T]
"""A life while it is lived: steps come out, their results go in, and what it returns is the answer to the kubelet."""


@final
@attrs.frozen
class Read(Step[Record | None]):
    """Read what is remembered of the claim, in its record or, without one, in its CDI spec."""


@final
@attrs.frozen
class Fetch(Step[Mapping[str, Any] | None]):
    """Get the claim from the API server.

    Attributes:
        is_needed: Whether it is an error that the server does not answer; otherwise the result is None then.
    """

    is_needed: bool


@final
@attrs.frozen
class Discover(Step[Mapping[str, Device]]):
    """Return the driver's devices, by id."""


@final
@attrs.frozen
class Restore(Step[None]):
    """Have the CDI spec of a prepared claim on the disk again.

    Attributes:
        record: Its record, with the spec.
    """

    record: Record


@final
@attrs.frozen
class Start(Step[Mapping[ClaimPart, Mount]]):
    """Save that the claim is started, unless another claim has one of its devices; return its metadata files' mounts.

    Attributes:
        plan: What is to be done.
        record: What to save.
    """

    plan: ClaimPlan
    record: Record


@final
@attrs.frozen
class Allocate(Step[tuple[Rendered, Mapping[str, Any]]]):
    """Call ``allocate``; the result is what containers get, and the state that the hook left.

    Attributes:
        saved: The part.
        parameters: What the claim asks for.
        metadata: What mounts the request's metadata file; None: nothing does.
    """

    saved: SavedPart
    parameters: Parameters
    metadata: Mount | None


@final
@attrs.frozen
class Save(Step[None]):
    """Replace the claim's record.

    Attributes:
        record: What to save.
    """

    record: Record


@final
@attrs.frozen
class Complete(Step[None]):
    """Write the claim's CDI spec, and then its record, which says that it is complete.

    Attributes:
        plan: What was done.
        record: What to save, with the spec.
    """

    plan: ClaimPlan
    record: Record


@final
@attrs.frozen
class Commit(Step[Record]):
    """Check, render and complete at once a claim that no hook has a part in; returns the complete record.

    Attributes:
        plan: What is to be done.
        record: The record, which is started.
    """

    plan: ClaimPlan
    record: Record


@final
@attrs.frozen
class AwaitAllocate(Step[None]):
    """Wait until no ``allocate`` of the claim is running any more, also none that was given up."""


@final
@attrs.frozen
class Release(Step[None]):
    """Call ``released``, and have the claim's record say so as soon as it has returned.

    Attributes:
        saved: The part.
        record: What to save then.
    """

    saved: SavedPart
    record: Record


@final
@attrs.frozen
class Forget(Step[None]):
    """Remove the claim's CDI spec, its metadata, and then its record."""


@final
@attrs.frozen
class Clear(Step[None]):
    """Remove the files that a claim may have left of which nothing is known."""
