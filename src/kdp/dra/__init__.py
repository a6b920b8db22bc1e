"""Dynamic resource allocation (DRA) from the same backend: the pure parts, and what keeps slices in the API server.

* ``names``: device ids as names of the API, and back; the driver's name, the slices' names.
* ``limits``: what a server of which version accepts. ``validation``: those rules, with the paths of the server's fields.
* ``render``: a `kdp.Device` as the API has it. ``standard``: the attributes that all drivers share, from the hardware.
* ``layout``: which device lies in which slice, with least change. ``slices``: the ResourceSlices of a pool, and what to
  write so that the API server has them. ``dropped``: what the server left out of them, and what is honest without it.
* ``api``: what a driver asks of the API server; ``kube``: the one that speaks to a real one (extra ``kube``).
* ``publication``: what to ask next so that the server has a pool's slices, without I/O; ``publisher``: does it.
* ``parameters``: what a claim's configuration says, as objects of the backend's ``config`` class.

Source of the rules: the API ``resource.k8s.io/v1``; the modules name the files of upstream that enforce them.
"""
