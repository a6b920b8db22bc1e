"""`DraTimings`: how long things take in a kubelet's DRA manager."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class DraTimings:
    """How long things take, in seconds; by default as in the kubelet.

    Attributes:
        call: For one call of Prepare or Unprepare.
        wiping_delay: Until a driver's slices are wiped after the last connection to it was lost.
        wiping_retry: Until a failed wiping is tried again, doubled each time.
        health_retry: Until a health stream that ended is opened again.
        reconcile: Between two looks for pods that are gone.
        watcher: Between two looks of the plugin watcher.
    """

    call: float = 45.0
    wiping_delay: float = 30.0
    wiping_retry: float = 1.0
    health_retry: float = 5.0
    reconcile: float = 60.0
    watcher: float = 1.0
