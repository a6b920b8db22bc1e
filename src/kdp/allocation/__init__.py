"""Chooses devices for a container (preferred allocation) and shares one device between containers.

It knows only the model: no socket, and no kubelet.

* `choose` answers one question, `explain` says why; both are pure functions over `kdp.Device` values.
* `Topology` is what ``DeviceBackend.links`` said, checked; `links_of_matrix` makes links of a square matrix.
* `Sharing` and `share` turn any backend into one whose devices are advertised several times.

The kubelet asks which devices to prefer while a pod waits for its admission, and an error would fail that pod. So every
policy is exact where that is fast and stops at its budget where it is not, saying so.
"""

from __future__ import annotations

from ..startup import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
