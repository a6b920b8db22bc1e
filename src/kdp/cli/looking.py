"""One look at a backend, and where in the vendor's code it failed."""

from __future__ import annotations

import functools
import logging
import os
import sys
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from traceback import TracebackException
from typing import TYPE_CHECKING, TypeVar

import click

from ..daemon.places import warn_of_missing_places
from ..daemon.sources import warn_of_slips
from ..errors import HookFailedError, InvalidValueError, in_one_line, sentence
from .streams import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from ..daemon.plan import ServingPlan
    from ..model.backend import DeviceBackend
    from ..model.devices import Device

_T = TypeVar("_T")


def discovered(backend: DeviceBackend, plan: ServingPlan) -> Mapping[str, tuple[Device, ...]]:
    """Open a backend of an invocation's plan, discover once, close it, and return its devices by resource."""
    from ..supervision.discover import discover_once

    return looked(discover_once, backend, plan)


def listed(found: Mapping[str, tuple[Device, ...]]) -> dict[str, tuple[Device, ...]]:
    """Return the devices that a device plugin lists, by resource: no partition that is still to be made."""
    kept = {name: tuple(device for device in devices if device.exists) for name, devices in found.items()}
    return {name: devices for name, devices in kept.items() if devices or not found[name]}


def looked(look: Callable[..., Awaitable[_T]], backend: DeviceBackend, plan: ServingPlan) -> _T:
    """Return what a function of `kdp.supervision.discover` finds.

    Raises:
        KdpError: The backend is not ready, or a hook misbehaved.
    """
    import anyio

    assert plan.host is not None  # an invocation's plan has one
    warn_of_slips(os.environ)
    warn_of_missing_places(plan.settings)
    cause: BaseException | None = None
    with _logged_failures() as logged:
        try:
            return anyio.run(functools.partial(look, backend, host=plan.host))
        except HookFailedError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, InvalidValueError):  # the sentence has it already
                raise
            # A person at a terminal, not a pod's author: the details may be shown.
            told = f"{type(cause).__name__}; the plugin's log has the details"
            raise HookFailedError(sentence(error).replace(told, in_one_line(cause))) from cause
        finally:
            for record in logged:
                _show(record, cause)


@contextmanager
def _logged_failures() -> Generator[list[logging.LogRecord]]:
    """Collect what is logged of hooks that fail."""
    handler = BufferingHandler(capacity=sys.maxsize)
    logger = logging.getLogger("kdp.supervision.hooks")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def _show(record: logging.LogRecord, cause: BaseException | None) -> None:
    """Show a hook's failure; of the one that ends the command only the frames, since its error says the rest."""
    kind, error, trace = record.exc_info or (None, None, None)
    if error is None or error is not cause:
        click.echo(shown(record.getMessage()), err=True)
    if kind is not None and error is not None:
        lines = [*TracebackException(kind, error, trace).format()]
        click.echo(shown("".join(lines[:-1] if error is cause else lines).rstrip("\n")), err=True)
