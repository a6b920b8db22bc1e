"""What a node's kubelet offers: its directories, its sockets, and its pod-resources and pods APIs.

It knows neither resources nor backends.
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .paths import KubeletPaths as KubeletPaths
    from .watch import KubeletState as KubeletState
    from .watch import KubeletView as KubeletView
    from .watch import KubeletWatch as KubeletWatch
    from .watch import look as look
