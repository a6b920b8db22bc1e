"""A node and its API server for tests of DRA drivers: real sockets, modelled behaviour, and faults on command.

* `kubelet.SimulatedDraKubelet`: finds drivers by the plugin watcher, prepares and unprepares claims, wipes slices,
  watches health, restarts. The decisions are sans-IO: ``claims``, ``health``.
* `server.SimulatedApiServer`: ResourceSlices, ResourceClaims and Nodes over HTTP.
* ``objects``: the scheduler's work, which is the test's own. ``profiles``: Kubernetes 1.34, 1.36 and 1.37.
"""
