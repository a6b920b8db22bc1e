"""What is wrong on a node: questions about it and its plugins, and their answers.

A running plugin is asked, so the hardware is not looked at a second time.

`answers` has the values: a `Question` has a function that turns a `Node` into an `Answer`. Its `examine` asks all of
them beside each other, each with a deadline. `node` is what a question sees. Each group of questions has a file:
`kubelet`, `sockets`, `resources`, `devices`, `cdi`, `dra`, `directories`, and `process`. `catalogue` lists them.
"""
