"""The kubelet's protocols: our own ``.proto`` texts and the code generated from them.

It does not know the rest of kdp.

Private to kdp, and no part of the public interface. Where each fact comes from, why the messages live in a descriptor
pool of their own, and how to generate the code again is told in the README.md beside this file.
"""
