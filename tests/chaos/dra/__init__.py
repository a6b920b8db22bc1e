"""Chaos of a DRA driver: a real driver process between a kubelet and an API server, judged from outside.

``python -m tests.chaos.dra --seconds 60 --seed 7`` prints the seed, what was played, and each rule that was broken.

* `driver`: the vendor's driver, a process of its own.
* `world`: the node: the kubelet, the API server, the scheduler's work, pods, and claims.
* `files`: what the driver keeps on the disk, and the damage that others do to it.
* `operations` and `api_faults`: what can happen, each with its weight.
* `judge`: the rules, without I/O.
"""
