"""The test kit under the name that vendors import: a simulated kubelet, its faults, and what judges a plugin.

It knows only `kdp_testkit`, and no room of kdp.

They come with the extra ``testing``: ``pip install "kdp-sdk[testing]"``. The docstring of `kdp_testkit` is the tour.
"""

from __future__ import annotations

try:
    from kdp_testkit import *
    from kdp_testkit import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "kdp_testkit":
        raise
    raise ModuleNotFoundError(
        "kdp.testing needs the distribution kdp-testkit, which comes with the extra 'testing': "
        "pip install 'kdp-sdk[testing]'",
        name=error.name,
    ) from None
