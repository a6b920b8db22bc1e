"""Chaos: a real plugin process is played against a kubelet at random, and judged from outside.

``python -m tests.chaos --seconds 60 --seed 7`` prints the seed, what was played, and each rule that was broken.

* `plugin`: the vendor's plugin, a process of its own; `disk`: its disk, which fails on command; `account`: what it says
  of its memory.
* `node`: the processes, their devices, their hooks, and their disk; `tree`: the device nodes; `world`: the kubelet and
  its pods.
* `operations`: what can happen, each with its weight.
* `judge`: the rules, without I/O.
* `play`: plays rounds of operations and asks the judge after each.
* `dra`: the same for a DRA driver, with an API server.
"""
