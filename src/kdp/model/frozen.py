"""`FrozenDict`: a mapping of a frozen value, whose errors say how to make a changed copy.

Unlike `types.MappingProxyType` it can be copied and pickled, as a discovery in a `ProcessPoolExecutor` needs.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, final

from typing_extensions import override

from ..errors import InvalidValueError

_K = TypeVar("_K")
_V = TypeVar("_V")


def _refused(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError(
        "kdp's values are frozen: make a changed copy, for example edits.adding(env={'NAME': '1'}) or "
        "attrs.evolve(device, attributes={**device.attributes, 'name': 1})"
    )


@final
class FrozenDict(dict[_K, _V]):
    """A dict that nobody changes."""

    __slots__ = ()

    __setitem__: Any = _refused
    __delitem__: Any = _refused
    __ior__: Any = _refused
    clear: Any = _refused
    pop: Any = _refused
    popitem: Any = _refused
    setdefault: Any = _refused
    update: Any = _refused

    @override
    def __reduce__(self) -> tuple[type[FrozenDict[_K, _V]], tuple[dict[_K, _V]]]:
        return type(self), (dict(self),)


def dict_of(value: object, what: str, example: object) -> dict[Any, Any]:
    """Return a mapping, or pairs, as a dict; messages call it ``what``.

    Raises:
        InvalidValueError: It is neither.
    """
    mapping: Any = value
    try:
        return dict(mapping)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{what} {value!r}: must be a mapping; for example {example}") from None
