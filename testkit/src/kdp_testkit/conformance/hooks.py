"""Hooks around a vendor's hooks: a class derived from his stands between him and kdp.

A hook may be ``def`` or ``async def``; what is put around it stays what it was, so that kdp calls it as it would have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

if TYPE_CHECKING:
    from kdp.model.backend import DeviceBackend

Hook = Callable[..., Any]


def derive(backend: DeviceBackend, hooks: Mapping[str, object]) -> None:
    """Make a backend one of a class that is derived from its own and has these attributes."""
    cls = type(backend)
    derived = type(cls.__name__, (cls,), {"__module__": cls.__module__, **hooks})
    backend.__class__ = cast("type[DeviceBackend]", derived)


async def called(hook: Hook, *arguments: Any) -> Any:
    """Call a hook as kdp does: in the event loop, or in a thread if it is not asynchronous."""
    if inspect.iscoroutinefunction(hook):
        return await hook(*arguments)
    return await anyio.to_thread.run_sync(hook, *arguments)


def before(hook: Hook, call: Callable[[Any], object]) -> Hook:
    """Return a hook of one argument that has something else called with it first."""
    if inspect.iscoroutinefunction(hook):

        async def asynchronous(self: DeviceBackend, argument: Any) -> Any:
            call(argument)
            return await hook(self, argument)

        return asynchronous

    def plain(self: DeviceBackend, argument: Any) -> Any:
        call(argument)
        return hook(self, argument)

    return plain


def after(hook: Hook, change: Callable[[DeviceBackend, Any], object]) -> Hook:
    """Return a hook without arguments whose result is changed."""
    if inspect.iscoroutinefunction(hook):

        async def asynchronous(self: DeviceBackend) -> Any:
            return change(self, await hook(self))

        return asynchronous

    def plain(self: DeviceBackend) -> Any:
        return change(self, hook(self))

    return plain
