"""A kubelet for tests, and checks of a plugin: the names of `kdp_testkit`, as vendors import them.

They come with the extra ``testing``: ``pip install "kdp-sdk[testing]"``. The docstring of `kdp_testkit` is the tour.

The kit announces itself by an entry point of the group ``kdp.testing``, so that kdp need not import it. For type
checkers and editors, ``__init__.pyi`` beside this file says the same.
"""

from __future__ import annotations

from importlib.metadata import entry_points

_announced = list(entry_points(group="kdp.testing"))
if not _announced:
    raise ModuleNotFoundError(
        "kdp.testing needs the distribution kdp-testkit, which comes with the extra 'testing': "
        "pip install 'kdp-sdk[testing]'",
        name="kdp_testkit",
    )
_kit = _announced[0].load()

__all__ = list(_kit.__all__)  # pyright: ignore[reportUnsupportedDunderAll] - it looks at the stub


def __getattr__(name: str) -> object:
    """Return what the kit has of this name, which loads it on first use (PEP 562)."""
    return getattr(_kit, name)
