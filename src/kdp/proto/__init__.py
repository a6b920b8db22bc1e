"""The kubelet's protocols as kdp ships them: our own texts and the code generated from them.

Private to kdp: nothing here is part of the public interface. Where each fact comes from, why the messages live in a
descriptor pool of their own, and how to generate the code again is told in the README.md beside this file.
"""
