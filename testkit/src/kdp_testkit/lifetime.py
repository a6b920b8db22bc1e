"""How long a simulated kubelet's process lives, its temporary directory, and how a test sees its own error."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

import anyio
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from anyio.abc import TaskStatus


class Lifetime:
    """One life of a kubelet's process, in a task that can be ended from outside."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()

    async def run(
        self,
        live: Callable[..., Awaitable[None]],
        *arguments: Any,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Live until `end`; ``live`` reports when it has started."""
        try:
            with self._scope:
                await live(*arguments, task_status=task_status)
        finally:
            self._over.set()

    def end(self) -> None:
        """Cancel it; takes effect at the next checkpoint."""
        self._scope.cancel()

    async def until_over(self) -> None:
        """Wait until it has ended."""
        await self._over.wait()


_Entered = TypeVar("_Entered")


@final
class Entered(AbstractAsyncContextManager[_Entered]):
    """A context of a test that knows whether the test has entered it: otherwise, nothing has run.

    Args:
        inner: The context.
        all_of_test: The contexts of the test, which get this one.

    Attributes:
        is_entered: Whether it was entered.
    """

    def __init__(self, inner: AbstractAsyncContextManager[_Entered], all_of_test: list[Entered[Any]]) -> None:
        self._inner = inner
        self.is_entered = False
        all_of_test.append(self)

    @override
    async def __aenter__(self) -> _Entered:
        self.is_entered = True
        return await self._inner.__aenter__()

    @override
    async def __aexit__(self, *exception: Any) -> bool | None:  # noqa: PYI036 - handed on
        return await self._inner.__aexit__(*exception)


def temporary_root(owner: object) -> tuple[str, Callable[[], object]]:
    """Make a temporary directory and return it with what removes it, which also happens when its owner is gone.

    The name is short, because a socket's path has at most 107 bytes.
    """
    root = tempfile.mkdtemp(prefix="kdp-")
    return root, weakref.finalize(owner, shutil.rmtree, root, ignore_errors=True)


@contextmanager
def ungrouped() -> Generator[None]:
    """Raise the only exception of a group itself, so that a failed assert reads as one, and `pytest.raises` sees it."""
    only: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        only, *more = leaves(group)
        if more:
            raise
    if only is None:
        return
    context = only.__context__
    try:
        raise only
    finally:
        only.__context__ = context  # Python has put the group there


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of a group and of the groups in it, in their order; there is at least one."""
    found: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found += leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            found.append(error)
    return found
