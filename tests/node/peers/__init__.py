"""Device plugins that others have written, judged with the conformance kit; the table is docs/explanation/peers.md.

``python -m tests.node.peers --help`` tells how. The Go sources beside this file are compiled by ``make node-tools``.
"""
