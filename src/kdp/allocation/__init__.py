"""Chooses devices for a container (preferred allocation) and shares one device between containers.

It knows only the model: no socket, and no kubelet.

* `choose` answers one question, `explain` says why; both are pure functions over `kdp.Device` values.
* `Topology` is what ``DeviceBackend.links`` said, checked; `links_of_matrix` makes links of a square matrix.
* `Sharing` and `share` turn any backend into one whose devices are advertised several times.

The kubelet asks which devices to prefer while a pod waits for its admission, and an error would fail that pod. So every
policy is exact where that is fast and stops at its budget where it is not, saying so.
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .policies import POLICIES as POLICIES
    from .policies import Policy as Policy
    from .policies import choose as choose
    from .policies import explain as explain
    from .problem import Choice as Choice
    from .problem import Rival as Rival
    from .problem import Term as Term
    from .shared import share as share
    from .sharing import Override as Override
    from .sharing import Sharing as Sharing
    from .topology import Topology as Topology
    from .topology import links_of_matrix as links_of_matrix
