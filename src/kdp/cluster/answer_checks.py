"""`AnswerChecks`: turns an answer of another shape into an `OddAnswerError`.

One ERROR line says when the answers to a kind of request become odd, and one when they are right again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar, final

from . import shapes
from .api import ApiError, Object, OddAnswerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@final
class AnswerChecks:
    """The checks of one connection. ``what`` names a request as in errors: verb, kind of object, and its name."""

    def __init__(self) -> None:
        self._odd: set[str] = set()

    async def object(self, what: str, call: Awaitable[Object], shape: object) -> Object:
        """Return an object that is asked for, checked against its shape."""
        return await self.asked(what, call, lambda found: shapes.check(found, shape))

    async def asked(self, what: str, call: Awaitable[_T], check: Callable[[_T], None]) -> _T:
        """Return an answer that ``check`` takes.

        Raises:
            ApiError: The request failed, or the check raised a `ShapeError`.
        """
        try:
            found = await call
            try:
                check(found)
            except shapes.ShapeError as error:
                raise OddAnswerError(what, str(error)) from None
        except ApiError as error:
            self.failed(what, error)
            raise
        self.right(what)
        return found

    def failed(self, what: str, error: ApiError) -> None:
        """Say it if the answer was odd."""
        if isinstance(error, OddAnswerError):
            kind = " ".join(what.split()[:2])
            if kind not in self._odd:
                self._odd.add(kind)
                logger.error("%s", error)

    def right(self, what: str) -> None:
        """Say that the answers to this kind of request are right again, if they were odd."""
        if self._odd:
            kind = " ".join(what.split()[:2])
            if kind in self._odd:
                self._odd.discard(kind)
                logger.info("%s: the answers of the API server are valid again", kind)
