"""Dynamic resource allocation (DRA) from the same backend; `driver` has `DraDriver`, which puts it all together.

* ``names``: device ids as names of the API, and back; the driver's name, the slices' names.
* ``limits``: what a server of which version accepts. ``validation``: those rules, with the paths of the server's fields.
* ``render``: a `kdp.Device` as the API has it. ``standard``: the attributes that all drivers share, from the hardware.
* ``layout``: which device lies in which slice, with least change. ``slices``: the ResourceSlices of a pool, and what to
  write so that the API server has them. ``dropped``: what the server left out of them, and what is honest without it.
* ``api``: what a driver asks of the API server; ``kube``: the one that speaks to a real one (extra ``kube``).
* ``publication``: what to ask next so that the server has a pool's slices, without I/O; ``publisher``: does it.
* ``parameters``: what a claim's configuration says, as objects of the backend's ``config`` class.
* ``claims``: what an allocated claim asks of this driver. ``prepare``: Prepare and Unprepare, without gRPC. ``checkpoint``:
  what is remembered of claims, and the locks that processes share. ``specs``: a claim's CDI spec.
* ``sockets``, ``servicer``, ``wire``: how the kubelet finds a driver and calls it. ``health``: what it is told of the
  devices, and the taints that keep claims away from sick ones. ``plugin``: one driver; ``driver``: all of a process.

Source of the rules: the API ``resource.k8s.io/v1``; the modules name the files of upstream that enforce them.
"""
